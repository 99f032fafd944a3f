//! The number of GPU cores. Metal doesn't tell it; the I/O registry does.

use objc2_core_foundation::{CFDictionary, CFNumber, CFRetained, CFString};
use objc2_io_kit::{
    IOObjectRelease, IORegistryEntryCreateCFProperty, IOServiceGetMatchingService,
    IOServiceMatching, kIOMainPortDefault,
};

/// Where the user states it on a machine whose registry doesn't (a virtual one).
pub(super) const VARIABLE: &str = "TILEWRIGHT_METAL_CORES";

/// Cores of the GPU: what the user states, else property `gpu-core-count` of the accelerator's
/// service. `None` where neither tells it.
pub(super) fn count() -> Option<u32> {
    if let Ok(stated) = std::env::var(VARIABLE) {
        return stated.trim().parse().ok().filter(|n| *n > 0);
    }
    // SAFETY: a C string; the dictionary that comes back is ours.
    let matching = unsafe { IOServiceMatching(c"AGXAccelerator".as_ptr()) }?;
    // SAFETY: a mutable dictionary is a dictionary.
    let matching = unsafe { CFRetained::cast_unchecked::<CFDictionary>(matching) };
    // SAFETY: the call consumes one reference of the dictionary, which is handed over.
    let service = unsafe { IOServiceGetMatchingService(kIOMainPortDefault, Some(matching)) };
    if service == 0 {
        return None;
    }
    let key = CFString::from_static_str("gpu-core-count");
    // SAFETY: a live service and key; the default allocator and no options.
    let value = unsafe { IORegistryEntryCreateCFProperty(service, Some(&key), None, 0) };
    IOObjectRelease(service);
    let number = value?.downcast::<CFNumber>().ok()?.as_i64()?;
    u32::try_from(number).ok().filter(|n| *n > 0)
}
