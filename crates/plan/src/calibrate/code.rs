//! The version of the fitting code, by its text.

use crate::hash::{Canonical, Hash256};

/// SHA-256 over the source of everything that turns training rows into coefficients. A profile
/// records it: coefficients can be re-derived only by the code that made them.
pub fn code_hash() -> Hash256 {
    let sources = [
        ("calibrate/anchor.rs", include_str!("anchor.rs")),
        ("calibrate/data.rs", include_str!("data.rs")),
        ("calibrate/fit.rs", include_str!("fit.rs")),
        ("calibrate/lstsq.rs", include_str!("lstsq.rs")),
        ("calibrate/nnls.rs", include_str!("nnls.rs")),
        ("calibrate/service.rs", include_str!("service.rs")),
        ("calibrate/whole_launch.rs", include_str!("whole_launch.rs")),
        ("calibrate/guard.rs", include_str!("guard.rs")),
        ("calibrate/evaluation.rs", include_str!("evaluation.rs")),
        ("calibrate/bands.rs", include_str!("bands.rs")),
        ("policy/whole_launch/mod.rs", include_str!("../policy/whole_launch/mod.rs")),
        ("policy/whole_launch/rows.rs", include_str!("../policy/whole_launch/rows.rs")),
        ("policy/whole_launch/matrix.rs", include_str!("../policy/whole_launch/matrix.rs")),
        (
            "policy/whole_launch/register_rows.rs",
            include_str!("../policy/whole_launch/register_rows.rs"),
        ),
        (
            "policy/whole_launch/register_matrix.rs",
            include_str!("../policy/whole_launch/register_matrix.rs"),
        ),
        ("policy/whole_launch/long_rows.rs", include_str!("../policy/whole_launch/long_rows.rs")),
        ("policy/gpu_rows.rs", include_str!("../policy/gpu_rows.rs")),
        ("policy/gpu_matrix.rs", include_str!("../policy/gpu_matrix.rs")),
        ("policy/whole_launch/cpu_rows.rs", include_str!("../policy/whole_launch/cpu_rows.rs")),
        ("policy/whole_launch/cpu_matrix.rs", include_str!("../policy/whole_launch/cpu_matrix.rs")),
    ];
    let mut c = Canonical::new("fitting code");
    for (name, text) in sources {
        c.text(name, text);
    }
    c.hash()
}
