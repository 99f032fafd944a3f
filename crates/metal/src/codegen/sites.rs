//! What a text does, counted in the text itself, so that a plan's counts can be held against it.

/// Places in the kernel function of a module. Trip counts of loops don't matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sites {
    /// Barriers of a threadgroup.
    pub threadgroup_barriers: u64,
    /// Barriers of a simdgroup.
    pub simdgroup_barriers: u64,
    /// Reductions over a simdgroup.
    pub collectives: u64,
    /// Products of 8×8 fragments.
    pub simdgroup_multiplies: u64,
    /// 8×8 fragments that exist at the same time or one after another.
    pub simdgroup_fragments: u64,
    /// Tensor operations.
    pub tensor_operations: u64,
    /// Of these, those that overwrite.
    pub tensor_overwrites: u64,
    /// Cooperative tensors.
    pub cooperative_tensors: u64,
    /// Threadgroup memory in bytes.
    pub threadgroup_bytes: u64,
    /// Elements of the arrays that every lane has for itself.
    pub private_scalars: u64,
}

/// Names of the reductions, helpers included.
const REDUCTIONS: [&str; 6] =
    ["simd_sum(", "simd_product(", "simd_min(", "simd_max(", "tw_simd_min(", "tw_simd_max("];

impl Sites {
    /// Counts a module's text. Helpers don't count; calls of them do.
    pub fn count(text: &str) -> Sites {
        let body = text.split_once("[[kernel").map_or(text, |(_, body)| body);
        let calls = |name: &str| {
            let starts = body.match_indices(name).map(|(at, _)| at);
            let word = |at: &usize| {
                body[..*at].chars().next_back().is_none_or(|c| !c.is_alphanumeric() && c != '_')
            };
            starts.filter(word).count() as u64
        };
        let overwriting: Vec<&str> = body
            .lines()
            .filter(|l| l.contains("mode::multiply)"))
            .filter_map(|l| l.split_whitespace().nth(2))
            .collect();
        // `constexpr auto t0 = …` is followed by `matmul2d<t0, …> op0;`.
        let overwrites = |operation: &&str| {
            overwriting
                .iter()
                .any(|d| d.trim_start_matches('t') == operation.trim_start_matches("op"))
        };
        let runs: Vec<&str> = body
            .lines()
            .filter_map(|l| l.trim().split_once(".run(").map(|(operation, _)| operation))
            .collect();
        let fragments = ["float", "half", "bfloat"];
        Sites {
            threadgroup_barriers: calls("threadgroup_barrier("),
            simdgroup_barriers: calls("simdgroup_barrier("),
            collectives: REDUCTIONS.iter().map(|name| calls(name)).sum(),
            simdgroup_multiplies: calls("simdgroup_multiply_accumulate(")
                + calls("simdgroup_multiply("),
            simdgroup_fragments: fragments
                .iter()
                .map(|t| calls(&format!("simdgroup_{t}8x8 ")))
                .sum(),
            tensor_operations: runs.len() as u64,
            tensor_overwrites: runs.iter().filter(|r| overwrites(r)).count() as u64,
            cooperative_tensors: body.matches(".get_destination_cooperative_tensor<").count()
                as u64,
            threadgroup_bytes: body
                .lines()
                .filter_map(|line| array(line.trim().strip_prefix("threadgroup ")?))
                .map(|(size, count)| size * count)
                .sum(),
            private_scalars: body.lines().filter_map(array).map(|(_, count)| count).sum(),
        }
    }
}

/// Element size and length of a declaration `TYPE NAME[COUNT];`.
fn array(line: &str) -> Option<(u64, u64)> {
    let (ty, rest) = line.trim().strip_suffix("];")?.split_once(' ')?;
    let (name, count) = rest.split_once('[')?;
    let size = match ty {
        "float" | "int" => 4,
        "half" | "bfloat" => 2,
        "bool" => 1,
        _ => return None,
    };
    // An assignment from an array ends alike.
    let declared = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    declared.then_some(())?;
    count.parse::<u64>().ok().map(|count| (size, count))
}
