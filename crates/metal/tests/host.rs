//! What the host decides of every case of the list, without a Mac: which systems take it, and that
//! its arguments and grid find their places.

use std::collections::BTreeMap;
use tilewright_ir::DType;
use tilewright_ir::entity::Id as _;
use tilewright_kernel::kernel::{ArgSource, Elem};
use tilewright_metal::BindingKind;
use tilewright_metal::cases::{Case, Realisation, cases};
use tilewright_metal::host::{Allocations, DeviceFacts, Placed, admit, arrange, generate};
use tilewright_runtime::{ArgValue, RuntimeError};

fn facts(os: u32) -> DeviceFacts {
    DeviceFacts {
        name: "Apple M1 Max".to_string(),
        architecture: None,
        os: [os, 0, 0],
        apple_family: Some(7),
        metal3: true,
        metal4: os >= 26,
        lanes: 32,
        max_threads: 1024,
        threadgroup_bytes: 32768,
        cores: 32,
        memory_bytes: 1 << 35,
        buffer_bytes: 1 << 34,
        unified_memory: true,
        counter_sets: Vec::new(),
    }
}

fn bf16(case: &Case) -> bool {
    case.program.tensors.iter().any(|(_, t)| t.dtype == DType::BF16)
}

#[test]
fn systems_take_what_their_language_has() {
    let all = cases().unwrap();
    for os in [13, 14, 15, 26] {
        let facts = facts(os);
        for case in &all {
            let taken = generate(&case.kernel, &facts).and_then(|module| {
                admit(&case.id, &module, &facts).map(|()| assert_eq!(module, case.module))
            });
            let lacks =
                (case.realisation == Realisation::Tensors && os < 26) || (bf16(case) && os < 14);
            match taken {
                Ok(()) => assert!(!lacks, "{} on macOS {os}", case.id),
                Err(RuntimeError::Unsupported { failure, .. }) => {
                    assert!(lacks, "{} on macOS {os}: {}", case.id, failure.detail);
                    assert!(failure.detail.contains("MSL"), "{}", failure.detail);
                }
                Err(other) => panic!("{}: {other}", case.id),
            }
        }
    }
}

#[test]
fn arguments_and_grids_of_every_case_find_their_places() {
    for case in cases().unwrap() {
        let space = Allocations::default();
        let mut args = Vec::new();
        for ((id, arg), binding) in case.kernel.args.iter().zip(&case.module.bindings) {
            assert_eq!((id, id.index() as u32), (binding.arg, binding.slot), "{}", case.id);
            let name = |map: &BTreeMap<String, f64>, name: &str| map[name];
            args.push(match (arg.source, binding.kind) {
                (_, BindingKind::Buffer { .. }) => {
                    // A buffer of its own for each argument, 1 GiB apart.
                    let start = (id.index() + 1) << 30;
                    space.insert(start, 1 << 20, 0, id.index());
                    ArgValue::Buffer { ptr: (start + 256) as *mut u8, bytes: 4096 }
                }
                (ArgSource::Dim(d), _) => {
                    ArgValue::Index(case.dims[&case.program.dims[d].name] as i64)
                }
                (ArgSource::Scalar(s), BindingKind::Number(Elem::Data(dtype))) => {
                    let x = name(&case.scalars, &case.program.scalars[s].name);
                    if dtype.is_float() { ArgValue::Float(x) } else { ArgValue::Index(x as i64) }
                }
                other => panic!("{}: {other:?}", case.id),
            });
        }
        let placed = arrange(&case.id, &case.module, &args, &space).unwrap().unwrap();
        assert_eq!(placed.threads, case.kernel.lanes * case.kernel.subgroups, "{}", case.id);
        assert!(placed.groups.iter().all(|n| *n > 0), "{}", case.id);
        for (slot, value) in &placed.slots {
            match value {
                Placed::Buffer { object, offset } => {
                    assert_eq!((*object, *offset), (*slot as usize, 256), "{}", case.id);
                }
                Placed::Number { len, .. } => assert!(matches!(len, 2 | 4 | 8), "{}", case.id),
            }
        }
    }
}
