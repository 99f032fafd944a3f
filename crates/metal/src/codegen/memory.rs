//! Loads and stores of elements.

use tilewright_ir::DType;
use tilewright_ir::program::{Access, MapOp};
use tilewright_kernel::kernel::{
    ArgKind, Elem, Guard, GuardTest, Layout, Memory, Place, SharedId, ValueId,
};

use super::EmitError;
use super::emitter::{Emitter, literal_of, type_name};
use super::index::{Range, Val};

/// Names of vector elements.
const PARTS: [&str; 4] = ["x", "y", "z", "w"];

/// Where an access goes.
struct Address {
    /// Name of the memory.
    name: String,
    dtype: DType,
    /// Its first element, logical.
    first: Val,
    memory: Memory,
}

impl Emitter<'_> {
    pub(super) fn memory_dtype(&self, memory: Memory) -> Result<DType, EmitError> {
        match memory {
            Memory::Global(arg) => match self.kernel.args[arg].kind {
                ArgKind::Buffer { dtype, .. } => Ok(dtype),
                _ => Err(self.unsupported("an access to an argument that is no buffer")),
            },
            Memory::Shared(shared) => Ok(self.kernel.shared[shared].dtype),
            Memory::Cluster(_) => Err(self.unsupported("memory across a cluster")),
            Memory::Private(private) => Ok(self.kernel.private[private].dtype),
        }
    }

    pub(super) fn memory_name(&self, memory: Memory) -> String {
        match memory {
            Memory::Global(arg) => self.arg_name(arg),
            // Refused where its element type is asked for, before any access.
            Memory::Shared(shared) | Memory::Cluster(shared) => self.shared_name(shared),
            Memory::Private(private) => self.private_name(private),
        }
        .to_string()
    }

    /// The storage position of a logical element of a shared buffer.
    pub(super) fn storage(&mut self, shared: SharedId, element: Val) -> Result<Val, EmitError> {
        let buffer = &self.kernel.shared[shared];
        let Layout::Padded(pad) = buffer.layout else { return Ok(element) };
        let cols = Val::int(buffer.cols.max(1) as i64);
        // An access is inside the buffer, so the element isn't negative.
        let row = self.index(MapOp::Div, &element, &cols)?;
        let skipped = self.index(MapOp::Mul, &row, &Val::int(i64::from(pad)))?;
        self.index(MapOp::Add, &element, &skipped)
    }

    fn address(&mut self, place: &Place) -> Result<Address, EmitError> {
        let mut first = self.val(place.base)?;
        if place.lane_stride != 0 {
            let lane = self.lane();
            let offset = self.index(MapOp::Mul, &lane, &Val::int(place.lane_stride))?;
            first = self.index(MapOp::Add, &first, &offset)?;
        }
        if let Some(index) = place.index {
            let mut offset = self.val(index)?;
            if self.elem(index)? != Elem::Index {
                offset.range = Range::new(i32::MIN.into(), i32::MAX.into());
            }
            first = self.index(MapOp::Add, &first, &offset)?;
        }
        Ok(Address {
            name: self.memory_name(place.memory),
            dtype: self.memory_dtype(place.memory)?,
            first,
            memory: place.memory,
        })
    }

    /// Element `v` of an access.
    fn element(&mut self, address: &Address, v: usize) -> Result<String, EmitError> {
        let at = self.index(MapOp::Add, &address.first, &Val::int(v as i64))?;
        let at = match address.memory {
            Memory::Shared(shared) => self.storage(shared, at)?,
            _ => at,
        };
        Ok(format!("{}[{}]", address.name, at.text))
    }

    /// Elements `v ..` of an access as one vector; global memory only, which the kernel keeps
    /// aligned.
    fn vector(
        &mut self,
        address: &Address,
        v: usize,
        width: usize,
        write: bool,
    ) -> Result<String, EmitError> {
        let at = self.index(MapOp::Add, &address.first, &Val::int(v as i64))?;
        let read_only = match address.memory {
            Memory::Global(arg) => {
                matches!(self.kernel.args[arg].kind, ArgKind::Buffer { access: Access::In, .. })
            }
            _ => false,
        };
        let constant = if read_only && !write { "const " } else { "" };
        let ty = type_name(address.dtype);
        let at = if at.known() == Some(0) { String::new() } else { format!(" + {}", at.operand()) };
        Ok(format!("*(device {constant}{ty}{width}*)({}{at})", address.name))
    }

    /// Whether element `v` of `width` per lane takes part.
    fn test(&mut self, guard: &Guard, width: usize, v: usize) -> Result<Val, EmitError> {
        match guard.test {
            GuardTest::Mask(mask) => self.val(mask),
            GuardTest::Count(limit) => {
                let limit = self.val(limit)?;
                let lane = self.lane();
                let first = self.index(MapOp::Mul, &lane, &Val::int(width as i64))?;
                let at = self.index(MapOp::Add, &first, &Val::int(v as i64))?;
                Ok(Val::data(format!("{} < {}", at.operand(), limit.operand()), false))
            }
        }
    }

    pub(super) fn load(
        &mut self,
        place: &Place,
        guard: Option<&Guard>,
        results: &[ValueId],
    ) -> Result<(), EmitError> {
        let address = self.address(place)?;
        let width = results.len();
        if width == 1 || !matches!(place.memory, Memory::Global(_)) {
            for (v, result) in results.iter().enumerate() {
                let mut text = self.element(&address, v)?;
                if let Some(guard) = guard {
                    let test = self.test(guard, width, v)?.operand();
                    text = format!("{test} ? {text} : {}", literal_of(guard.fill, address.dtype));
                }
                self.define_named(*result, &Val::data(text, false))?;
            }
            return Ok(());
        }
        let parts: Vec<&[ValueId]> = results.chunks(4).collect();
        let names: Vec<String> = parts.iter().map(|p| Self::temporary('p', p[0])).collect();
        let ty = type_name(address.dtype);
        for (c, part) in parts.iter().enumerate() {
            for (result, field) in part.iter().zip(PARTS) {
                let name = format!("{}.{field}", names[c]);
                self.values.insert(*result, Val::data(name, true));
            }
        }
        let Some(guard) = guard else {
            for (c, part) in parts.iter().enumerate() {
                let from = self.vector(&address, 4 * c, part.len(), false)?;
                self.line(format!("const {ty}{} {} = {from};", part.len(), names[c]));
            }
            return Ok(());
        };
        let fill = literal_of(guard.fill, address.dtype);
        for (c, part) in parts.iter().enumerate() {
            let fills = vec![fill.as_str(); part.len()].join(", ");
            self.line(format!("{ty}{n} {} = {ty}{n}{{{fills}}};", names[c], n = part.len()));
        }
        let whole: Result<Vec<String>, EmitError> = (0..parts.len())
            .map(|c| {
                let from = self.vector(&address, 4 * c, parts[c].len(), false)?;
                Ok(format!("{} = {from};", names[c]))
            })
            .collect();
        let single: Result<Vec<String>, EmitError> = (0..width)
            .map(|v| {
                let from = self.element(&address, v)?;
                Ok(format!("{}.{} = {from};", names[v / 4], PARTS[v % 4]))
            })
            .collect();
        self.guarded(guard, width, &whole?, &single?)
    }

    /// The whole access where all elements take part; else, in the lane at the limit, those that
    /// do.
    fn guarded(
        &mut self,
        guard: &Guard,
        width: usize,
        whole: &[String],
        single: &[String],
    ) -> Result<(), EmitError> {
        // Elements are in order, so all take part iff the last does.
        let all = self.test(guard, width, width - 1)?;
        self.open(format!("if ({}) {{", all.text));
        for line in whole {
            self.line(line);
        }
        if let (GuardTest::Count(_), true) = (guard.test, width > 1) {
            let first = self.test(guard, width, 0)?;
            self.close(&format!("}} else if ({}) {{", first.text));
            self.depth_in();
            for (v, line) in single.iter().enumerate().take(width - 1) {
                if v == 0 {
                    self.line(line);
                } else {
                    let test = self.test(guard, width, v)?;
                    self.line(format!("if ({}) {line}", test.text));
                }
            }
        }
        self.close("}");
        Ok(())
    }

    pub(super) fn store(
        &mut self,
        place: &Place,
        values: &[ValueId],
        guard: Option<&Guard>,
    ) -> Result<(), EmitError> {
        let address = self.address(place)?;
        let width = values.len();
        let vals: Vec<Val> = values.iter().map(|v| self.val(*v)).collect::<Result<_, _>>()?;
        let single: Vec<String> = (0..width)
            .map(|v| Ok(format!("{} = {};", self.element(&address, v)?, vals[v].text)))
            .collect::<Result<_, EmitError>>()?;
        if width == 1 || !matches!(place.memory, Memory::Global(_)) {
            let Some(guard) = guard else {
                single.iter().for_each(|line| self.line(line));
                return Ok(());
            };
            if width == 1 {
                let test = self.test(guard, 1, 0)?;
                self.line(format!("if ({}) {}", test.text, single[0]));
                return Ok(());
            }
            return self.guarded(guard, width, &single, &single);
        }
        let ty = type_name(address.dtype);
        let whole: Vec<String> = vals
            .chunks(4)
            .enumerate()
            .map(|(c, part)| {
                let to = self.vector(&address, 4 * c, part.len(), true)?;
                let list: Vec<&str> = part.iter().map(|v| v.text.as_str()).collect();
                Ok(format!("{to} = {ty}{}{{{}}};", part.len(), list.join(", ")))
            })
            .collect::<Result<_, EmitError>>()?;
        match guard {
            None => {
                whole.iter().for_each(|line| self.line(line));
                Ok(())
            }
            Some(guard) => self.guarded(guard, width, &whole, &single),
        }
    }
}
