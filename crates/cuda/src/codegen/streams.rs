//! Which inputs a group reads once and no other group reads: they needn't stay in a core's cache,
//! where they would displace what all groups read (a norm's weights).

use std::collections::{HashMap, HashSet};

use tilewright_ir::program::Access;
use tilewright_kernel::kernel::{ArgId, ArgKind, Block, Kernel, Memory, Op, ValueId};

/// Loads of one input: where the group's number decides the place, with a guard and without.
#[derive(Default)]
struct Loads {
    plain: u32,
    guarded: u32,
    /// Loads that don't depend on the group.
    shared: u32,
}

/// Inputs that are loaded at one place of the text, or at one and at its guarded tail, from where
/// the group's number says; none where no other input is shared by the groups.
pub(super) fn streams(kernel: &Kernel) -> HashSet<ArgId> {
    let mut loads = HashMap::new();
    scan(kernel, &kernel.body, &mut HashSet::new(), &mut loads);
    let once = |l: &Loads| l.shared == 0 && l.plain <= 1 && l.guarded <= 1;
    if loads.values().all(|l: &Loads| l.shared == 0) {
        return HashSet::new();
    }
    loads.into_iter().filter(|(_, l)| once(l)).map(|(arg, _)| arg).collect()
}

fn scan(
    kernel: &Kernel,
    block: &Block,
    own: &mut HashSet<ValueId>,
    loads: &mut HashMap<ArgId, Loads>,
) {
    for stmt in &block.stmts {
        let mut depends = matches!(stmt.op, Op::GroupId(_));
        stmt.op.for_each_operand(&mut |v| depends |= own.contains(&v));
        if depends {
            own.extend(stmt.results.iter().copied());
        }
        if let Op::Load { place, guard } = &stmt.op
            && let Memory::Global(arg) = place.memory
            && let ArgKind::Buffer { access: Access::In, .. } = kernel.args[arg].kind
        {
            let entry = loads.entry(arg).or_default();
            let group = own.contains(&place.base) || place.index.is_some_and(|i| own.contains(&i));
            match (group, guard) {
                (false, _) => entry.shared += 1,
                (true, None) => entry.plain += 1,
                (true, Some(_)) => entry.guarded += 1,
            }
        }
        if let Op::For { index, carries, .. } = &stmt.op
            && depends
        {
            own.insert(*index);
            own.extend(carries.iter().map(|c| c.inner));
        }
        for inner in stmt.op.blocks().into_iter().flatten() {
            scan(kernel, inner, own, loads);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
kernel k lanes 32 subgroups 1 {
  grid 4 step 1
  arg x: buffer f32 in align 16
  arg w: buffer f32 in align 16
  arg twice: buffer f32 in align 16
  arg y: buffer f32 out align 16
  %g: index@group = group_id 0
  %c32: index@grid = const 32
  %c7: index@grid = const 7
  %row: index@group = mul %g, %c32
  %a: f32@lane = load x[%row + lane*1]
  %tail: f32@lane = load x[%row + lane*1] where count %c7
  %b: f32@lane = load w[%c32 + lane*1]
  %c: f32@lane = load twice[%row + lane*1]
  %d: f32@lane = load twice[%row + lane*1]
  %sum: f32@lane = add %a, %b
  store y[%row + lane*1], %sum
}
";

    #[test]
    fn only_what_one_group_reads_once_streams() {
        let kernel = tilewright_kernel::text::parse(TEXT).unwrap();
        let names: Vec<&str> =
            streams(&kernel).into_iter().map(|a| kernel.args[a].name.as_str()).collect();
        assert_eq!(names, ["x"]);
        let alone = TEXT.replace("load w[", "load x[").replace("%c: f32", "// %c: f32");
        let alone = alone.replace("%d: f32", "// %d: f32").replace("%b: f32", "// %b: f32");
        let alone = alone.replace("add %a, %b", "add %a, %a");
        let kernel = tilewright_kernel::text::parse(&alone).unwrap();
        assert!(streams(&kernel).is_empty());
    }
}
