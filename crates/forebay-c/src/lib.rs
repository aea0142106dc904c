//! The C interface: batches that a sidecar serves, mapped by a trainer in any language.
//!
//! `include/forebay.h` is the contract, and tells it function by function; here is how it is kept. Every
//! function is [`border::answer`] around safe code: it turns errors into what the caller frees, and a
//! panic into an error. What the caller says of its pointers is believed in [`border`], and nowhere else
//! but where a handle is taken back.
//!
//! The crate stands on the client of `forebay-feed` alone. Plans and options stay JSON, which the sidecar
//! reads, so that nothing that reads data is linked into the trainer.

mod batch;
mod border;
mod epoch;
mod failure;
mod loader;

/// The version of the interface in `forebay.h`; raised when a program that was compiled with an earlier
/// header would misunderstand this library.
pub const ABI_VERSION: u32 = 1;

/// [`ABI_VERSION`] of the library that is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_abi_version() -> u32 {
    ABI_VERSION
}

/// The header lets every thread use every handle, which raw pointers would hide from the compiler.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<forebay_feed::client::Loader>();
    is_shared::<epoch::Epoch>();
    is_shared::<forebay_feed::Batch>();
    is_shared::<failure::Failure>();
};
