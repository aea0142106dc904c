"""The page that a soak writes."""

from __future__ import annotations

from typing import Any

MIB = 2**20


def page(result: dict[str, Any]) -> str:
    """Return the page, in Markdown."""
    host, rests = result["host"], result["rests"]
    verdict = "passed" if result["passed"] else "failed"
    lines = [
        "# Soak",
        "",
        "Written by `make soak`: trainers of all kinds around one sidecar, of which some are killed or stand still,",
        "and a sidecar that is killed as well. Every client compares each batch with what is due. After each round all",
        "clients end, and what the sidecar still holds is looked at; see [benches/feed](../benches/feed/README.md).",
        "",
        f"{host['date']}, {host['cpus']} CPUs of {host['cpu']}, {host['memory_gib']} GiB, {host['system']};"
        f" {host['minutes']:g} minutes, seed {host['seed']}: **{verdict}**.",
        "",
        *[f"- {failure}" for failure in result["failures"]],
        *([""] if result["failures"] else []),
        "| what | count |",
        "|---|---:|",
        *[f"| {name} | {count:,} |" for name, count in result["counts"].items()],
        "",
        "The sidecar at rest, after each round. In the rows without a mark it was killed now and then; in those with",
        "one it is the same process all the time, which must not grow.",
        "",
        "| second | same process | RSS, MiB | descriptors | threads | mappings |",
        "|---:|:---:|---:|---:|---:|---:|",
        *[
            f"| {rest['second']} | {'✓' if rest['settled'] else ''} | {rest['rss'] / MIB:.1f} | {rest['descriptors']}"
            f" | {rest['threads']} | {rest['mappings']} |"
            for rest in rests
        ],
        "",
        f"Under load its RSS was {_range(result['rss_under_load'])} MiB.",
        "",
    ]
    return "\n".join(lines)


def _range(samples: list[list[int]]) -> str:
    sizes = [size / MIB for _, size in samples] or [0.0]
    return f"{min(sizes):.0f} to {max(sizes):.0f}"
