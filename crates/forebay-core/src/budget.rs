//! One byte budget for the process, with awaitable reservations.

/// In progress.
pub struct ByteBudget;
/// In progress.
pub struct Account;
/// In progress.
pub struct Reservation;
