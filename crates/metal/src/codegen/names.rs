//! Names in the text that clash with nothing.

use std::collections::HashSet;

/// Words of the language, and functions and names that the emitted text uses.
const RESERVED: &str = "accumulate alignas array as_type asm auto bfloat bool break case catch char clamp class \
    const constant constexpr continue decltype default delete device dextents do double else \
    enum execution_simdgroup explicit export extern fabs false float fma fmax fmin for \
    fragment friend goto group group_id half if INFINITY inline int isnan kernel lane lane_id \
    left long main matmul2d max mem_flags metal min mpp multiply mutable namespace NAN new \
    operator precise private protected public register return right select short signed sizeof \
    static struct subgroup subgroup_id switch target template tensor tensor_inline this thread \
    threadgroup throw true try typedef typename uchar uint ulong union unsigned ushort using \
    vec vertex virtual void volatile while";

/// Gives every name once.
#[derive(Debug, Default)]
pub(super) struct Names {
    taken: HashSet<String>,
}

impl Names {
    /// The name, with underscores behind it until it is free. What starts as Metal's own names or
    /// the helpers do gets another start.
    pub(super) fn take(&mut self, name: &str) -> String {
        let reserved = ["tw_", "simd", "quad", "__"].into_iter().any(|p| name.starts_with(p));
        let mut name = if reserved { format!("x_{name}") } else { name.to_string() };
        while is_reserved(&name) || self.taken.contains(&name) {
            name.push('_');
        }
        self.taken.insert(name.clone());
        name
    }
}

/// Reserved words and the names of values.
fn is_reserved(name: &str) -> bool {
    let numbered = |prefix: &str| {
        name.strip_prefix(prefix)
            .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    RESERVED.split_whitespace().any(|word| word == name)
        || ["v", "n", "p", "q", "f", "t", "group", "op", "float", "half", "int"]
            .into_iter()
            .any(numbered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clashes_get_another_name() {
        let mut names = Names::default();
        let taken = ["x", "x", "kernel", "v12", "v12_", "vx", "simd_sum", "float4", "half"]
            .map(|n| names.take(n));
        let expected =
            ["x", "x_", "kernel_", "v12_", "v12__", "vx", "x_simd_sum", "float4_", "half_"];
        assert_eq!(taken, expected);
    }
}
