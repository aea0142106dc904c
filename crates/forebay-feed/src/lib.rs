//! Slabs and their pools, batches handed to the trainer.
