# The front door. Every target is one chore of `cargo xtask`, which installs what is missing.

.DEFAULT_GOAL := help
XTASK := cargo run --quiet --profile fast --package xtask --

.PHONY: help demo test python bench bench-images bench-tabular bench-startup bench-resume bench-feed soak lint

help: ## this list
	@echo "Forebay, a streaming data engine for machine learning"
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "  make %-14s %s\n", $$1, $$2 }'

demo: ## build, run the jobs of examples/ on real data, show what came out
	@$(XTASK) demo

test: ## all that CI runs: every test in Rust and Python, and the lints
	@$(XTASK) test

python: ## make .venv with the package (release build), numpy, pyarrow, pillow, torch
	@$(XTASK) python

bench: ## all three benchmarks against their peers
	@$(XTASK) bench

bench-images: ## photographs to training batches
	@$(XTASK) bench images

bench-tabular: ## numeric columns to dense batches
	@$(XTASK) bench tabular

bench-startup: ## time to the first batch
	@$(XTASK) bench startup

bench-resume: ## first batch at 90% of an epoch against 0%, local and S3
	@$(XTASK) bench resume

bench-feed: ## loaders that a sidecar serves; ARGS="--quick --only handoff"
	@$(XTASK) bench feed $(ARGS)

soak: ## twenty minutes of trainers that come, go and die; ARGS="--minutes 5"
	@$(XTASK) soak $(ARGS)

lint: ## formatting, clippy, ruff, spelling, licences
	@$(XTASK) lint
