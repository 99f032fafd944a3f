//! A kernel's text as a part of a C++ translation unit: its signature is read from the text
//! itself, so that what the emitter says of it is checked, not trusted.

/// What a kernel's parameter is bound to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Binding {
    /// `[[buffer(n)]]`.
    Buffer(u32),
    /// `[[threadgroup(n)]]`.
    Threadgroup(u32),
    /// A position or a size that every lane knows.
    Builtin(String),
}

/// A parameter: `ty name [[binding]]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Param {
    /// The type as written, address space included, without `*` or `&`.
    pub ty: String,
    /// `*`, `&` or nothing.
    pub indirection: Option<char>,
    /// What it is bound to.
    pub binding: Binding,
}

/// A kernel function's head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signature {
    /// The function's name.
    pub name: String,
    /// Its parameters.
    pub params: Vec<Param>,
    /// `max_total_threads_per_threadgroup`, if stated.
    pub threads: Option<u32>,
}

/// Blanks out comments; what is left keeps its place.
pub fn without_comments(text: &str) -> String {
    let mut out: Vec<u8> = text.bytes().collect();
    let mut at = 0;
    while at + 1 < out.len() {
        let end = match &out[at..at + 2] {
            b"//" => out[at..].iter().position(|b| *b == b'\n').map_or(out.len(), |n| at + n),
            b"/*" => {
                out[at..].windows(2).position(|w| w == b"*/").map_or(out.len(), |n| at + n + 2)
            }
            _ => {
                at += 1;
                continue;
            }
        };
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Where a word begins, from a place on.
fn find_word(text: &str, word: &str, from: usize) -> Option<usize> {
    text[from..]
        .match_indices(word)
        .map(|(n, _)| from + n)
        .find(|&at| !text[..at].ends_with(is_word) && !text[at + word.len()..].starts_with(is_word))
}

/// The end of the bracket that opens at `open`, exclusive.
fn closing(text: &str, open: usize) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in text[open..].char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(open + at + 1);
        }
    }
    None
}

/// Parts between commas that no bracket holds.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' | '>' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts
}

/// The text of `word(…)` in `text`.
fn argument<'a>(text: &'a str, word: &str) -> Option<&'a str> {
    let at = find_word(text, word, 0)? + word.len();
    let open = at + text[at..].find('(')?;
    Some(text[open + 1..closing(text, open)? - 1].trim())
}

fn param(text: &str) -> Result<Param, String> {
    let wrong = |what: &str| format!("parameter `{}` has {what}", text.trim());
    let (decl, attribute) = text.split_once("[[").ok_or_else(|| wrong("no attribute"))?;
    let attribute = attribute.split("]]").next().unwrap_or("").trim();
    let number = |word| argument(attribute, word).and_then(|n| n.parse().ok());
    let binding = if attribute.starts_with("buffer") {
        Binding::Buffer(number("buffer").ok_or_else(|| wrong("no buffer number"))?)
    } else if attribute.starts_with("threadgroup(") {
        Binding::Threadgroup(number("threadgroup").ok_or_else(|| wrong("no number"))?)
    } else {
        Binding::Builtin(attribute.to_string())
    };
    let decl = decl.trim();
    let name_at = decl.rfind(|c: char| !is_word(c)).map_or(0, |n| n + 1);
    let ty = decl[..name_at].trim();
    let (ty, indirection) = match ty.strip_suffix(['*', '&']) {
        Some(inner) => (inner.trim(), ty.chars().last()),
        None => (ty, None),
    };
    Ok(Param { ty: ty.to_string(), indirection, binding })
}

/// The head of the one kernel function of a text.
///
/// # Errors
/// What of it can't be read.
pub fn signature(text: &str) -> Result<Signature, String> {
    let text = without_comments(text);
    let at = find_word(&text, "kernel", 0).ok_or("the text has no kernel function")?;
    if find_word(&text, "kernel", at + 6).is_some() {
        return Err("the text has more than one kernel function".to_string());
    }
    let void = find_word(&text, "void", at).ok_or("the kernel doesn't return void")?;
    let open = void + text[void..].find('(').ok_or("the kernel has no parameters")?;
    let name = text[void + 4..open].trim().to_string();
    let end = closing(&text, open).ok_or("the parameters have no end")?;
    let head_from = text[..at].rfind([';', '}']).map_or(0, |n| n + 1);
    let threads = argument(&text[head_from..void], "max_total_threads_per_threadgroup")
        .map(|n| n.parse().map_err(|_| format!("`{n}` threads")))
        .transpose()?;
    let params =
        split(&text[open + 1..end - 1]).into_iter().map(param).collect::<Result<_, _>>()?;
    Ok(Signature { name, params, threads })
}

/// A declaration `threadgroup T name[N];` in a kernel's body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Array<'a> {
    /// `alignas`, if stated.
    pub align: Option<&'a str>,
    /// The element type.
    pub ty: &'a str,
    /// The array's name.
    pub name: &'a str,
    /// `[N]`, or several.
    pub dims: &'a str,
}

/// A line's array declaration, if it is one.
///
/// # Errors
/// It is one in a form that this doesn't know.
pub fn array(code: &str) -> Result<Option<Array<'_>>, String> {
    let trimmed = code.trim();
    let mut align = None;
    let mut skip_align = |text: &mut &str| {
        if text.starts_with("alignas") {
            align = argument(text, "alignas").map(|value| {
                let at = trimmed.len() - text.len();
                let from = at + text.find(value).unwrap_or(0);
                &trimmed[from..from + value.len()]
            });
            let end = text.find('(').and_then(|open| closing(text, open)).unwrap_or(text.len());
            *text = text[end..].trim_start();
        }
    };
    let mut rest = trimmed;
    skip_align(&mut rest);
    let Some(after) = rest.strip_prefix("threadgroup ") else { return Ok(None) };
    rest = after.trim_start();
    skip_align(&mut rest);
    let head = &rest[..rest.find(['[', '=', '(']).unwrap_or(rest.len())];
    if head.contains(['*', '&']) || !rest.contains(';') {
        return Ok(None);
    }
    let unknown = || format!("`{trimmed}` isn't `threadgroup T name[N];`");
    let rest = rest.strip_suffix(';').ok_or_else(unknown)?.trim_end();
    let bracket = rest.find('[').unwrap_or(rest.len());
    let (decl, dims) = (rest[..bracket].trim(), &rest[bracket..]);
    let name_at = decl.rfind(|c: char| !is_word(c)).ok_or_else(unknown)? + 1;
    let (ty, name) = (decl[..name_at].trim(), &decl[name_at..]);
    if rest.contains(['=', ',']) || name.is_empty() || ty.is_empty() {
        return Err(unknown());
    }
    Ok(Some(Array { align, ty, name, dims }))
}

/// The text with another line in place of each array declaration.
///
/// # Errors
/// A declaration in a form that [`array`] doesn't know, with its line.
pub fn replace_arrays(
    text: &str,
    with: impl Fn(usize, &Array<'_>) -> String,
) -> Result<String, String> {
    let mut out = String::new();
    for (at, line) in text.lines().enumerate() {
        let code = without_comments(line);
        match array(&code).map_err(|e| format!("line {}: {e}", at + 1))? {
            Some(array) => out.push_str(&with(at + 1, &array)),
            None => out.push_str(line),
        }
        out.push('\n');
    }
    Ok(out)
}

/// Arrays as references to storage that the scheduler gives: C++ has no word that could stand
/// for `threadgroup` both there and in a pointer's type.
fn rewrite_arrays(text: &str) -> Result<String, String> {
    replace_arrays(text, |line, Array { align, ty, name, dims }| {
        let align = align.map(|n| format!(", {n}")).unwrap_or_default();
        format!("{ty} (&{name}){dims} = emu::threadgroup_array<{ty}{dims}{align}>({line});")
    })
}

/// A kernel to be run, under a name of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Named<'a> {
    /// What launches and messages call it.
    pub id: String,
    /// Its MSL.
    pub text: &'a str,
}

/// The translation unit of some kernels.
///
/// # Errors
/// What of a text can't be read, with the kernel's name.
pub fn unit(kernels: &[Named<'_>]) -> Result<String, String> {
    let tensors = kernels.iter().any(|k| k.text.contains("MetalPerformancePrimitives"));
    let mut out = String::from("#include <metal_stdlib>\n#include <metal_simdgroup_matrix>\n");
    if tensors {
        out.push_str("#include <metal_tensor>\n");
        out.push_str("#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>\n");
    }
    out.push_str("#include \"runtime/kernels.h\"\n#include \"emu/keywords.h\"\n");
    let mut table = String::new();
    for (i, Named { id, text }) in kernels.iter().enumerate() {
        let head = signature(text).map_err(|e| format!("{id}: {e}"))?;
        let body = rewrite_arrays(text).map_err(|e| format!("{id}: {e}"))?;
        out.push_str(&format!("namespace emu_text_{i} {{\n#line 1 \"{id}.metal\"\n{body}"));
        let arguments: Vec<String> = head
            .params
            .iter()
            .map(|p| match (&p.binding, p.indirection) {
                (Binding::Buffer(n), Some('*')) => format!("emu::pointer<{}>({n})", p.ty),
                (Binding::Buffer(n), _) => format!("emu::reference<{}>({n})", p.ty),
                (Binding::Threadgroup(n), _) => {
                    format!("static_cast<{}*>(emu::threadgroup_argument({n}))", p.ty)
                }
                (Binding::Builtin(name), _) => format!("emu::builtin::{name}<{}>(lane)", p.ty),
            })
            .collect();
        out.push_str(&format!(
            "#line 1 \"arguments of {id}\"\nstatic void emu_run([[maybe_unused]] const emu::Lane& \
             lane) {{ {}({}); }}\n}}\n",
            head.name,
            arguments.join(", ")
        ));
        let threads = head.threads.unwrap_or(0);
        table.push_str(&format!("    {{\"{id}\", emu_text_{i}::emu_run, {threads}}},\n"));
    }
    out.push_str(&format!(
        "namespace emu {{\nconst Kernel kernels[] = {{\n{table}}};\nconst int kernel_count = \
         {};\n}}\n",
        kernels.len()
    ));
    Ok(out)
}
