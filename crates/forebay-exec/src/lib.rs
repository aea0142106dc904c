//! The streaming executor: I/O runtime, CPU pool, ordering, cancellation.
