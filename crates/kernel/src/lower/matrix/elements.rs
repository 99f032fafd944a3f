//! Elementwise loops of a group over a two-dimensional tile, and the way of the result from
//! fragments to the output.

use tilewright_ir::program as ir;
use tilewright_ir::program::{AxisId, MapOp};

use super::{Frame, LANES, LowerError, Matrix, Pos, Rule, Source};
use crate::kernel::*;
use crate::lower::tile::TileId;

impl Matrix<'_> {
    /// Calls `body` for every element of a tile, each lane with its own: element `e` of the
    /// row-major tile belongs to thread `e mod T`.
    pub(super) fn each_element(
        &mut self,
        axes: [(AxisId, u64); 2],
        mut body: impl FnMut(&mut Self, &mut Frame) -> Result<(), LowerError>,
    ) -> Result<(), LowerError> {
        let threads = u64::from(self.mapping.threads);
        let total = axes[0].1 * axes[1].1;
        let rest = total % threads;
        let (zero, full) = (self.cx.b.int(0), self.cx.b.int((total - rest) as i64));
        let trips = self.cx.begin((zero, full, threads), 1, &[]);
        if !trips.is_never() {
            let (mut frame, _) = self.element_frame(axes, trips.index, None);
            body(self, &mut frame)?;
        }
        self.cx.end(trips, Vec::new());
        if rest != 0 {
            let end = self.cx.b.int(total as i64);
            let (mut frame, first) = self.element_frame(axes, full, Some(end));
            // Subgroups past the end have nothing: not even what all lanes share.
            let any = self.cx.b.compare(MapOp::Lt, first, end);
            let open = self.cx.b.begin_if(any);
            body(self, &mut frame)?;
            self.cx.b.end_if(open, &[]);
        }
        Ok(())
    }

    /// Where the threads stand for elements `begin ..`, and the subgroup's first element.
    fn element_frame(
        &mut self,
        [(outer, _), (inner, cols)]: [(AxisId, u64); 2],
        begin: ValueId,
        end: Option<ValueId>,
    ) -> (Frame, ValueId) {
        let b = &mut self.cx.b;
        let subgroup = b.subgroup_id();
        let skipped = b.mul_int(subgroup, i64::from(LANES));
        let first = b.add(begin, skipped);
        let width = b.int(cols as i64);
        let mut frame = Frame::at(Vec::new(), 1);
        if cols.is_multiple_of(u64::from(LANES)) {
            // The subgroup stands in one row.
            let (row, column) = (b.div(first, width), b.rem(first, width));
            frame.axes = vec![(outer, Pos::Uniform(row)), (inner, Pos::Lanes(column))];
            frame.limit = end.map(|end| b.sub(end, first));
        } else {
            let lane = b.lane();
            let element = b.add(first, lane);
            let (row, column) = (b.div(element, width), b.rem(element, width));
            frame.axes = vec![(outer, Pos::PerLane(row)), (inner, Pos::PerLane(column))];
            frame.mask = end.map(|end| b.compare(MapOp::Lt, element, end));
        }
        (frame, first)
    }

    /// Calls `body` for every element of the group's block of the result.
    pub(super) fn each_result_element(
        &mut self,
        body: impl FnMut(&mut Self, &mut Frame) -> Result<(), LowerError>,
    ) -> Result<(), LowerError> {
        let [m, n, _] = self.axes;
        let [bm, bn, _] = self.mapping.block;
        self.each_element([(m, bm), (n, bn)], body)
    }

    /// Declares a shared block of the result.
    pub(super) fn result_block(&mut self, name: &str) -> TileId {
        let [m, n, _] = self.axes;
        let [bm, bn, _] = self.mapping.block;
        self.cx.declare_tile(name, self.facts.accumulator, &[(m, bm), (n, bn)], 1)
    }

    /// A fragment's window of a shared block of the result.
    pub(super) fn result_view(&mut self, tile: TileId, [row, column]: [ValueId; 2]) -> View {
        let memory = Memory::Shared(self.cx.tiles[tile].shared);
        let b = &mut self.cx.b;
        let (stride, one) = (b.int(self.mapping.block[1] as i64), b.int(1));
        let base = b.mul(row, stride);
        let base = b.add(base, column);
        View::whole(memory, base, stride, one)
    }

    /// Writes the subgroup's fragments to a shared block.
    pub(super) fn store_block(
        &mut self,
        tile: TileId,
        places: &[[ValueId; 2]],
        fragments: &[ValueId],
    ) {
        for (place, fragment) in places.iter().zip(fragments) {
            let view = self.result_view(tile, *place);
            self.cx.b.fragment_store(*fragment, view);
        }
    }

    /// The store of the program: tensor, coordinates, value and bounds.
    fn output(
        &self,
    ) -> Result<(ir::TensorId, Vec<ir::Coord>, ir::ValueId, ir::Bounds), LowerError> {
        match &self.cx.program.ops[self.facts.store].op {
            ir::Op::Store { tensor, coords, value, bounds } => {
                Ok((*tensor, coords.clone(), *value, *bounds))
            }
            _ => Err(self.cx.error(Rule::Operation, "the output's store is no store")),
        }
    }

    /// Writes the subgroup's fragments to the output.
    pub(super) fn store_fragments(
        &mut self,
        places: &[[ValueId; 2]],
        fragments: &[ValueId],
    ) -> Result<(), LowerError> {
        let [m, n, _] = self.axes;
        let (tensor, coords, _, _) = self.output()?;
        for (place, fragment) in places.iter().zip(fragments) {
            let view = self.global_view(tensor, &coords, [m, n], *place)?;
            self.cx.b.fragment_store(*fragment, view);
        }
        Ok(())
    }

    /// Applies the epilogue to a shared block of products and writes it to the output.
    pub(super) fn store_elements(&mut self, products: TileId) -> Result<(), LowerError> {
        let (tensor, coords, value, bounds) = self.output()?;
        let program = self.cx.program;
        if let Some(result) = program.ops[self.facts.k_loop].results.first() {
            self.cx.sources.insert(*result, Source::Tile(products));
        }
        self.cx.prepare(value)?;
        self.each_result_element(|this, frame| {
            let values = this.cx.eval(value, frame)?;
            this.cx.write_tensor(frame, tensor, &coords, bounds, &values)
        })
    }
}
