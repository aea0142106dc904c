//! The CUDA driver of this process: found, started, and called with what its calls need around them.
//!
//! # A fork
//!
//! CUDA does not survive one: in the child every call fails or hangs. So the process that opens the
//! driver is noted before anything of it is touched, and no other one calls it.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUresult, CUstreamCaptureMode};
use forebay_core::process::PerProcess;

/// Why there is no CUDA to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The driver's library is not on this machine.
    NoDriver,
    /// The driver has no device, or shows none to this process.
    NoDevice,
    /// The process was forked from one that uses CUDA.
    Forked,
    /// There is a driver, and it does not work; its own words.
    Broken(String),
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDriver => f.write_str("there is no CUDA driver here (libcuda.so.1)"),
            Self::NoDevice => f.write_str("there is no CUDA device here"),
            Self::Forked => f.write_str(
                "this process was forked from one that uses CUDA, which cannot be used here \
                 (the start method \"spawn\" avoids it)",
            ),
            Self::Broken(how) => write!(f, "the CUDA driver does not work: {how}"),
        }
    }
}

/// What is called. Each is looked for before the first call, since the bindings panic at the call of
/// what a driver does not have.
const NAMES: [&CStr; 16] = [
    c"cuInit",
    c"cuDeviceGetCount",
    c"cuDeviceGet",
    c"cuCtxGetCurrent",
    c"cuCtxGetDevice",
    c"cuCtxPushCurrent_v2",
    c"cuCtxPopCurrent_v2",
    c"cuCtxSynchronize",
    c"cuDevicePrimaryCtxRetain",
    c"cuDevicePrimaryCtxRelease_v2",
    c"cuDevicePrimaryCtxGetState",
    c"cuThreadExchangeStreamCaptureMode",
    c"cuMemHostAlloc",
    c"cuMemFreeHost",
    c"cuMemHostRegister_v2",
    c"cuMemHostUnregister",
];

/// The driver, with the primary context of one device retained for as long as the process runs.
pub(crate) struct Driver {
    context: Context,
    devices: Vec<CUdevice>,
}

/// A context: a handle that any thread may use.
#[derive(Clone, Copy)]
struct Context(CUcontext);

// SAFETY: the driver documents its calls as safe from any thread, and a context is a handle to what
// it guards itself; nothing here looks behind the pointer.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// A call that did not succeed, with the driver's name for the reason.
pub(crate) struct Failed(&'static str, CUresult);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} gave {:?}", self.0, self.1)
    }
}

fn check(call: &'static str, result: CUresult) -> Result<(), Failed> {
    if result == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(Failed(call, result)) }
}

/// The driver of this process; found and started by the first call.
pub(crate) fn driver() -> Result<&'static Driver, Absent> {
    static DRIVER: PerProcess<OnceLock<Result<Driver, Absent>>> = PerProcess::new();
    DRIVER.get(OnceLock::new).get_or_init(Driver::open).as_ref().map_err(Clone::clone)
}

/// Whether this is the process that opened the driver.
pub(crate) fn is_own_process(pid: u32) -> bool {
    pid == std::process::id()
}

impl Driver {
    fn open() -> Result<Self, Absent> {
        /// The process that opened it, here or in the process that this one was forked from.
        static OPENED_BY: AtomicU32 = AtomicU32::new(0);
        let me = std::process::id();
        let by = OPENED_BY.compare_exchange(0, me, Ordering::SeqCst, Ordering::SeqCst);
        if by.is_err_and(|other| other != me) {
            return Err(Absent::Forked);
        }
        let found = Self::find().and_then(|()| Self::start());
        if found.is_err() {
            // A child may look for itself, and finds the reason.
            OPENED_BY.store(0, Ordering::SeqCst);
        }
        found
    }

    /// Loads the library.
    fn find() -> Result<(), Absent> {
        // SAFETY: loading the library runs its initialisers, as it does for every user of CUDA; they
        // ask nothing of the process.
        if !unsafe { sys::is_culib_present() } {
            return Err(Absent::NoDriver);
        }
        // SAFETY: the library is there, as was just seen, so this does not panic.
        let library = unsafe { sys::culib() };
        for name in NAMES {
            // SAFETY: the address is not called, only asked for.
            let found = unsafe { library.get::<unsafe extern "C" fn()>(name.to_bytes_with_nul()) };
            if found.is_err() {
                let name = name.to_string_lossy();
                return Err(Absent::Broken(format!("it is too old, and has no {name}")));
            }
        }
        Ok(())
    }

    fn start() -> Result<Self, Absent> {
        // SAFETY: the documented first call, with the only flags that there are.
        match unsafe { sys::cuInit(0) } {
            CUresult::CUDA_SUCCESS => {}
            CUresult::CUDA_ERROR_NO_DEVICE => return Err(Absent::NoDevice),
            // What the driver says in a child of a process where somebody else had started it.
            CUresult::CUDA_ERROR_NOT_INITIALIZED => return Err(Absent::Forked),
            other => return Err(Absent::Broken(Failed("cuInit", other).to_string())),
        }
        let devices = devices().map_err(|failed| Absent::Broken(failed.to_string()))?;
        let Some(first) = devices.first() else { return Err(Absent::NoDevice) };
        let device = current_device().or_else(|| local_rank(&devices)).unwrap_or(*first);
        let context = retain(device).map_err(|failed| Absent::Broken(failed.to_string()))?;
        Ok(Self { context, devices })
    }

    /// Page-locked memory of `bytes`, not initialised, from which every device copies at full speed.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<NonNull<c_void>, Failed> {
        // Never write-combined: the engine reads what it wrote, and the consumer may.
        const FLAGS: c_uint = sys::CU_MEMHOSTALLOC_PORTABLE;
        let _context = Entered::new(self.context)?;
        let mut at = ptr::null_mut();
        // SAFETY: `at` is a valid place for the answer, and a context is current.
        check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut at, bytes, FLAGS) })?;
        NonNull::new(at).ok_or(Failed("cuMemHostAlloc", CUresult::CUDA_ERROR_OUT_OF_MEMORY))
    }

    /// Gives memory back.
    ///
    /// # Safety
    /// `at` is from [`Self::allocate`], and neither a device nor anybody else uses it any more.
    pub(crate) unsafe fn free(&self, at: NonNull<c_void>) -> Result<(), Failed> {
        let _context = Entered::new(self.context)?;
        // SAFETY: as the caller promises.
        check("cuMemFreeHost", unsafe { sys::cuMemFreeHost(at.as_ptr()) })
    }

    /// Locks the pages of memory from elsewhere.
    ///
    /// # Safety
    /// From `at` on, `bytes` are mapped, and stay so until [`Self::unregister`].
    pub(crate) unsafe fn register(&self, at: NonNull<c_void>, bytes: usize) -> Result<(), Failed> {
        const FLAGS: c_uint = sys::CU_MEMHOSTREGISTER_PORTABLE;
        let _context = Entered::new(self.context)?;
        // SAFETY: as the caller promises.
        let result = unsafe { sys::cuMemHostRegister_v2(at.as_ptr(), bytes, FLAGS) };
        check("cuMemHostRegister", result)
    }

    /// Unlocks the pages again.
    ///
    /// # Safety
    /// `at` was registered, and no device copies from it any more.
    pub(crate) unsafe fn unregister(&self, at: NonNull<c_void>) -> Result<(), Failed> {
        let _context = Entered::new(self.context)?;
        // SAFETY: as the caller promises.
        check("cuMemHostUnregister", unsafe { sys::cuMemHostUnregister(at.as_ptr()) })
    }

    /// Waits until every device has done what it was asked for before this call, in the contexts that
    /// the CUDA runtime uses, and torch, JAX and CuPy with it: the primary ones.
    pub(crate) fn synchronize(&self) -> Result<(), Failed> {
        for device in &self.devices {
            let (mut flags, mut active) = (0, 0);
            // SAFETY: the device is one that the driver listed; the places for the answers are valid.
            let state =
                unsafe { sys::cuDevicePrimaryCtxGetState(*device, &mut flags, &mut active) };
            check("cuDevicePrimaryCtxGetState", state)?;
            // Where a device has no context, nobody has asked it for anything.
            if active != 0 {
                let context = retain(*device)?;
                let done = Entered::new(context).and_then(|_entered| {
                    // SAFETY: a context is current.
                    check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
                });
                // SAFETY: it was retained above, and is used no more.
                let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(*device) };
                done?;
            }
        }
        Ok(())
    }
}

/// A context that is current on this thread until the value is dropped; then what was before is again.
/// Meanwhile calls do not disturb a graph that another thread records, which allocating otherwise would.
struct Entered {
    capture: CUstreamCaptureMode,
}

impl Entered {
    fn new(context: Context) -> Result<Self, Failed> {
        // SAFETY: the context is retained.
        check("cuCtxPushCurrent", unsafe { sys::cuCtxPushCurrent_v2(context.0) })?;
        let mut capture = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the place holds a mode, and gets the one before, in exchange.
        let exchanged = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut capture) };
        let exchanged = check("cuThreadExchangeStreamCaptureMode", exchanged);
        let entered = Self { capture };
        exchanged.map(|()| entered)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut before = ptr::null_mut();
        // SAFETY: the thread's mode, and its stack of contexts, are as `new` left them: every value is
        // dropped on its thread, in the reverse order of their making. The places are valid. That these
        // calls may fail while the process exits changes nothing.
        let _ = unsafe {
            let _ = sys::cuThreadExchangeStreamCaptureMode(&mut self.capture);
            sys::cuCtxPopCurrent_v2(&mut before)
        };
    }
}

fn devices() -> Result<Vec<CUdevice>, Failed> {
    let mut count: c_int = 0;
    // SAFETY: the driver was started, and the place for the answer is valid.
    check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
    let get = |ordinal| {
        let mut device = 0;
        // SAFETY: as above.
        check("cuDeviceGet", unsafe { sys::cuDeviceGet(&mut device, ordinal) })?;
        Ok(device)
    };
    (0..count).map(get).collect()
}

/// The device that this thread works with, if it has chosen one.
fn current_device() -> Option<CUdevice> {
    let mut context = ptr::null_mut();
    let mut device = 0;
    // SAFETY: the driver was started, and the places for the answers are valid.
    unsafe {
        check("cuCtxGetCurrent", sys::cuCtxGetCurrent(&mut context)).ok()?;
        if context.is_null() {
            return None;
        }
        check("cuCtxGetDevice", sys::cuCtxGetDevice(&mut device)).ok()?;
    }
    Some(device)
}

/// The device that the launcher meant for this process: a context on another one would take some
/// hundred MiB of a device that belongs to another rank.
fn local_rank(devices: &[CUdevice]) -> Option<CUdevice> {
    let rank: usize = std::env::var("LOCAL_RANK").ok()?.trim().parse().ok()?;
    devices.get(rank).copied()
}

fn retain(device: CUdevice) -> Result<Context, Failed> {
    let mut context = ptr::null_mut();
    // SAFETY: the device is one that the driver named, and the place for the answer is valid.
    let result = unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, device) };
    check("cuDevicePrimaryCtxRetain", result)?;
    Ok(Context(context))
}
