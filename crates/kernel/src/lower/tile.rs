//! Tiles in shared memory.

use tilewright_ir::DType;
use tilewright_ir::entity_id;
use tilewright_ir::program::AxisId;

use super::access::{Access, Dim, Frame, Pos};
use super::{Context, LowerError, Rule};
use crate::kernel::*;

entity_id!(/** A tile in shared memory. */ TileId, "tile");

/// A tile in a shared buffer, row-major over its axes.
#[derive(Clone, Debug)]
pub(super) struct Tile {
    /// The buffer.
    pub shared: SharedId,
    /// Axes, outermost first, with their lengths.
    pub axes: Vec<(AxisId, u64)>,
    /// First element of the tile in its buffer (several stages), if not 0.
    pub offset: Option<ValueId>,
    /// The dtype of the value: conditions are stored as i32.
    pub dtype: DType,
}

impl Tile {
    /// Elements from one position along an axis to the next.
    pub fn stride(&self, axis: usize) -> u64 {
        self.axes[axis + 1..].iter().map(|(_, n)| *n).product()
    }
}

impl Context<'_> {
    /// Declares a tile of one or more stages.
    pub(super) fn declare_tile(
        &mut self,
        name: &str,
        dtype: DType,
        axes: &[(AxisId, u64)],
        stages: u64,
    ) -> TileId {
        let cols = axes.last().map_or(1, |(_, n)| *n);
        let rows = axes.iter().rev().skip(1).map(|(_, n)| *n).product::<u64>() * stages;
        let stored = if dtype == DType::Bool { DType::I32 } else { dtype };
        let shared = self.b.shared(name, stored, rows, cols, Layout::Plain);
        self.tiles.push(Tile { shared, axes: axes.to_vec(), offset: None, dtype })
    }

    fn tile_access(&mut self, tile: TileId, frame: &Frame) -> Result<Access, LowerError> {
        let tile = self.tiles[tile].clone();
        let mut dims = Vec::new();
        let zero = self.b.int(0);
        for (i, (axis, _)) in tile.axes.iter().enumerate() {
            let Some(pos) = frame.pos(*axis) else {
                let name = &self.program.axes[*axis].name;
                let detail = format!("axis `{name}` of a kept tile has no position here");
                return Err(self.error(Rule::Axis, detail));
            };
            let stride = tile.stride(i);
            let (uniform, lanes, varying) = match pos {
                Pos::Uniform(p) => (p, false, Vec::new()),
                Pos::Lanes(p) => (p, true, Vec::new()),
                Pos::PerLane(p) | Pos::Piece(p) => (zero, false, vec![p]),
            };
            dims.push(Dim {
                stride: self.b.int(stride as i64),
                stride_divisor: stride,
                uniform,
                uniform_divisor: if lanes { u64::from(frame.vector) } else { 1 },
                lanes,
                piece: matches!(pos, Pos::Piece(_)),
                varying,
                upper: None,
                lower: false,
            });
        }
        if let Some(offset) = tile.offset {
            dims.push(Dim {
                stride: self.b.int(1),
                stride_divisor: 1,
                uniform: offset,
                uniform_divisor: 1,
                lanes: false,
                piece: false,
                varying: Vec::new(),
                upper: None,
                lower: false,
            });
        }
        Ok(self.access(frame, Memory::Shared(tile.shared), &dims, 16))
    }

    /// Reads a tile at the frame's positions.
    pub(super) fn read_tile(
        &mut self,
        tile: TileId,
        frame: &Frame,
    ) -> Result<Vec<ValueId>, LowerError> {
        let access = self.tile_access(tile, frame)?;
        let values = self.read(&access, 0.0);
        let dtype = self.tiles[tile].dtype;
        Ok(values.into_iter().map(|v| self.convert(v, dtype)).collect())
    }

    /// Writes a tile at the frame's positions.
    pub(super) fn write_tile(
        &mut self,
        tile: TileId,
        frame: &Frame,
        values: &[ValueId],
    ) -> Result<(), LowerError> {
        let mut access = self.tile_access(tile, frame)?;
        let stored = self.b.kernel().shared[self.tiles[tile].shared].dtype;
        let values: Vec<ValueId> = values.iter().map(|v| self.convert(*v, stored)).collect();
        self.write(&mut access, &values);
        Ok(())
    }
}
