//! Launch arguments into place: buffer objects with offsets, numbers as bytes, and the grid.

use super::space::Allocations;
use crate::codegen::{Binding, BindingKind, Module};
use tilewright_ir::entity::Id;
use tilewright_kernel::kernel::Elem;
use tilewright_runtime::{ArgValue, Failure, RuntimeError, Stage};

/// What a slot of a kernel function gets.
#[derive(Clone, PartialEq, Debug)]
pub enum Placed<B> {
    /// A buffer object from an offset in bytes on.
    Buffer {
        /// The object.
        object: B,
        /// The offset.
        offset: usize,
    },
    /// A number: the first `len` of the bytes.
    Number {
        /// The bytes, in the order of memory.
        bytes: [u8; 8],
        /// How many count.
        len: usize,
    },
}

/// One dispatch of a kernel function with everything in place.
#[derive(Clone, PartialEq, Debug)]
pub struct Dispatch<B> {
    /// By slot.
    pub slots: Vec<(u32, Placed<B>)>,
    /// Threadgroups, x first.
    pub groups: [u32; 3],
    /// Threads of a threadgroup, all along x.
    pub threads: u32,
}

/// Places the arguments of a kernel, in launch order. `None` where the grid is empty.
///
/// # Errors
/// [`RuntimeError::Argument`] for a wrong count or kind, memory of another device or beyond its
/// end, a wrong alignment, or a number that the text doesn't handle; [`RuntimeError::Backend`]
/// where the grid is too large for Metal.
pub fn arrange<B: Clone>(
    kernel: &str,
    module: &Module,
    args: &[ArgValue],
    space: &Allocations<B>,
) -> Result<Option<Dispatch<B>>, RuntimeError> {
    let wrong = |index: usize, name: &str, detail: String| RuntimeError::Argument {
        kernel: kernel.to_string(),
        index,
        name: name.to_string(),
        detail,
    };
    if args.len() != module.bindings.len() {
        let index = args.len().min(module.bindings.len());
        let name = module.bindings.get(index).map_or("", |b| b.name.as_str());
        let detail = format!("{} arguments for {}", args.len(), module.bindings.len());
        return Err(wrong(index, name, detail));
    }
    let mut slots = Vec::with_capacity(args.len());
    for (index, (binding, value)) in module.bindings.iter().zip(args).enumerate() {
        let placed =
            place(binding, *value, space).map_err(|detail| wrong(index, &binding.name, detail))?;
        slots.push((binding.slot, placed));
    }
    for dim in &module.grid {
        if let tilewright_kernel::kernel::Size::Arg(arg) = dim.size
            && let Some(ArgValue::Index(size)) = args.get(arg.index())
            && *size < 0
        {
            let name = module.bindings.get(arg.index()).map_or("", |b| b.name.as_str());
            return Err(wrong(arg.index(), name, "a negative size".to_string()));
        }
    }
    let size = |arg: tilewright_kernel::kernel::ArgId| match args.get(arg.index()) {
        Some(ArgValue::Index(n)) => u64::try_from(*n).ok(),
        _ => None,
    };
    let Some(groups) = module.groups(size) else {
        return Err(RuntimeError::Backend(Failure {
            op: kernel.to_string(),
            plan: String::new(),
            stage: Stage::Launch,
            detail: "a dimension of its grid has more than 2^32 - 1 groups".to_string(),
        }));
    };
    if groups.contains(&0) {
        return Ok(None);
    }
    Ok(Some(Dispatch { slots, groups, threads: module.threads }))
}

fn place<B: Clone>(
    binding: &Binding,
    value: ArgValue,
    space: &Allocations<B>,
) -> Result<Placed<B>, String> {
    match (binding.kind, value) {
        (BindingKind::Buffer { align, .. }, ArgValue::Buffer { ptr, bytes }) => {
            let address = ptr as usize;
            if !(address as u64).is_multiple_of(align.max(1)) {
                return Err(format!("not aligned to {align} bytes"));
            }
            let (object, offset) = space
                .find(address, bytes)
                .ok_or_else(|| format!("{bytes} bytes that no buffer of this device holds"))?;
            Ok(Placed::Buffer { object, offset })
        }
        (BindingKind::Buffer { .. }, _) => Err("a number for a buffer".to_string()),
        (BindingKind::Number(_), ArgValue::Buffer { .. }) => {
            Err("a buffer for a number".to_string())
        }
        (BindingKind::Number(Elem::Index), ArgValue::Float(_)) => {
            Err("a float for an index".to_string())
        }
        (BindingKind::Number(elem), value) => {
            if let (Some(most), ArgValue::Index(n)) = (binding.most, value)
                && n > most
            {
                return Err(format!("{n} is over the limit {most} of this kernel"));
            }
            let (dtype, len) = match elem {
                Elem::Index => (None, 8),
                Elem::Data(dtype) => (Some(dtype), dtype.bytes() as usize),
            };
            Ok(Placed::Number { bytes: value.word(dtype).to_le_bytes(), len: len.min(8) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codegen::Language;
    use tilewright_ir::DType;
    use tilewright_ir::program::Access;
    use tilewright_kernel::kernel::{ArgId, GridDim, Size};

    fn binding(slot: u32, name: &str, kind: BindingKind, most: Option<i64>) -> Binding {
        Binding { arg: ArgId::from_index(slot as usize), slot, name: name.to_string(), kind, most }
    }

    /// `x: f16 buffer, rows: index, scale: f16`, a group per 4 rows.
    fn module() -> Module {
        let buffer = BindingKind::Buffer { dtype: DType::F16, access: Access::In, align: 16 };
        Module {
            text: String::new(),
            entry: "k".to_string(),
            bindings: vec![
                binding(0, "x", buffer, None),
                binding(1, "rows", BindingKind::Number(Elem::Index), Some(100)),
                binding(2, "scale", BindingKind::Number(Elem::Data(DType::F16)), None),
            ],
            threads: 64,
            threadgroup_bytes: 0,
            grid: vec![
                GridDim { size: Size::Arg(ArgId::from_index(1)), step: 4 },
                GridDim { size: Size::Const(7), step: 1 },
            ],
            language: Language::BASE,
            features: Vec::new(),
        }
    }

    fn space() -> Allocations<char> {
        let space = Allocations::default();
        space.insert(0x1000, 512, 32, 'a');
        space
    }

    fn args(rows: i64) -> [ArgValue; 3] {
        let ptr = 0x1100usize as *mut u8;
        [ArgValue::Buffer { ptr, bytes: 256 }, ArgValue::Index(rows), ArgValue::Float(1.0)]
    }

    #[test]
    fn buffers_become_objects_numbers_bytes_and_the_inner_dimension_x() {
        let placed = arrange("k", &module(), &args(9), &space()).unwrap().unwrap();
        assert_eq!(placed.groups, [7, 3, 1]);
        assert_eq!(placed.threads, 64);
        let nine = Placed::Number { bytes: 9u64.to_le_bytes(), len: 8 };
        let one = Placed::Number { bytes: 0x3c00u64.to_le_bytes(), len: 2 };
        let x = Placed::Buffer { object: 'a', offset: 32 + 256 };
        assert_eq!(placed.slots, [(0, x), (1, nine), (2, one)]);
        assert_eq!(arrange("k", &module(), &args(0), &space()), Ok(None));
    }

    #[test]
    fn every_wrong_argument_has_a_sentence() {
        let mut odd = args(9);
        odd[0] = ArgValue::Buffer { ptr: 0x1102usize as *mut u8, bytes: 8 };
        let mut beyond = args(9);
        beyond[0] = ArgValue::Buffer { ptr: 0x1100usize as *mut u8, bytes: 258 };
        let mut swapped = args(9);
        swapped.swap(0, 1);
        let mut float = args(9);
        float[1] = ArgValue::Float(9.0);
        let cases: [(&[ArgValue], &str); 8] = [
            (&args(9)[..2], "2 arguments for 3"),
            (&odd, "not aligned to 16 bytes"),
            (&beyond, "258 bytes that no buffer of this device holds"),
            (&swapped, "a number for a buffer"),
            (&float, "a float for an index"),
            (&args(100), ""),
            (&args(101), "101 is over the limit 100"),
            (&args(-1), "a negative size"),
        ];
        for (given, part) in cases {
            let outcome = arrange("k", &module(), given, &space());
            match (part, outcome) {
                ("", outcome) => assert!(outcome.is_ok(), "{outcome:?}"),
                (part, Err(error)) => assert!(error.to_string().contains(part), "{error}"),
                (part, Ok(_)) => panic!("no error: {part}"),
            }
        }
        let mut large = module();
        large.grid[1].size = Size::Const(1 << 32);
        let error = arrange("k", &large, &args(9), &space()).unwrap_err();
        assert!(error.to_string().contains("more than 2^32 - 1 groups"), "{error}");
    }
}
