//! From OP and SHAPE to a program with its sizes.

use crate::args::OpArgs;
use crate::error::{CliError, Fault};
use std::path::Path;
use std::str::FromStr;
use tilewright_ir::ops::{self, EpilogueStep, OpRequest, Trans};
use tilewright_ir::program::DimKind;
use tilewright_ir::text::{self, ReadError};
use tilewright_ir::{DType, Program};

/// A program to plan or run, all sizes bound.
#[derive(Debug)]
pub struct Request {
    /// Name for reports: the op, or the program's name.
    pub op: String,
    /// The shape as it was given.
    pub shape: String,
    /// Element type for reports.
    pub dtype: DType,
    /// The program. Blocks aren't bound.
    pub program: Program,
    /// Values of run-time scalars by name.
    pub scalars: Vec<(String, f64)>,
}

/// Value of the epilogue's `scale` on the command line, where nobody can state another.
const SCALE: f64 = 0.5;

impl Request {
    /// Builds the program that the arguments describe.
    ///
    /// # Errors
    /// Usage errors; a `.tile` file's faults with their places; I/O errors of reading it.
    pub fn new(args: &OpArgs) -> Result<Self, CliError> {
        let dtype = args.dtype.as_deref().unwrap_or("f32");
        let dtype = DType::from_str(dtype).map_err(CliError::usage)?;
        if dtype == DType::Bool {
            return Err(CliError::Usage("a tensor can't hold bool: use i32".to_string()));
        }
        if is_path(&args.op) {
            Self::from_file(args, dtype)
        } else {
            Self::from_library(args, dtype)
        }
    }

    fn from_library(args: &OpArgs, dtype: DType) -> Result<Self, CliError> {
        let info = ops::find(&args.op).map_err(CliError::usage)?;
        let text = args.shape.as_deref().ok_or_else(|| {
            CliError::Usage(format!("`{}` needs a shape {}", info.name, info.form.text()))
        })?;
        let shape = ops::parse_shape(text).map_err(CliError::usage)?;
        let epilogue = args
            .epilogue
            .iter()
            .map(|step| EpilogueStep::from_str(step))
            .collect::<Result<Vec<_>, _>>()
            .map_err(CliError::usage)?;
        let trans = match &args.trans {
            Some(text) => Trans::from_str(text).map_err(CliError::usage)?,
            None => Trans::default(),
        };
        let request = OpRequest {
            trans,
            alpha: args.alpha.unwrap_or(1.0),
            beta: args.beta.unwrap_or(0.0),
            epilogue,
            ..OpRequest::shaped(dtype, &shape)
        };
        let program = info.build(&request).map_err(CliError::usage)?;
        let given = [("alpha", request.alpha), ("beta", request.beta), ("scale", SCALE)];
        let scalars = program
            .scalars
            .iter()
            .filter_map(|(_, s)| given.iter().find(|(name, _)| *name == s.name))
            .map(|(name, value)| (name.to_string(), *value))
            .collect();
        Ok(Request { op: info.name.to_string(), shape: text.to_string(), dtype, program, scalars })
    }

    fn from_file(args: &OpArgs, dtype: DType) -> Result<Self, CliError> {
        let options = [
            ("--dtype", args.dtype.is_some()),
            ("--trans", args.trans.is_some()),
            ("--epilogue", !args.epilogue.is_empty()),
            ("--alpha", args.alpha.is_some()),
            ("--beta", args.beta.is_some()),
        ];
        if let Some((option, _)) = options.iter().find(|(_, given)| *given) {
            return Err(CliError::Usage(format!(
                "{option} is for the library's ops; a .tile file says what it computes"
            )));
        }
        let mut program = read_program(Path::new(&args.op))?;
        let shape = args.shape.clone().unwrap_or_default();
        let sizes = parse_bindings(&shape)?;
        for (name, value) in &sizes {
            program.bind(name, *value).map_err(CliError::usage)?;
        }
        let open: Vec<&str> = program
            .dims
            .iter()
            .filter(|(_, d)| matches!(d.kind, DimKind::Symbolic { .. }))
            .map(|(_, d)| d.name.as_str())
            .collect();
        if !open.is_empty() {
            let example: Vec<String> = open.iter().map(|name| format!("{name}=…")).collect();
            return Err(CliError::Usage(format!(
                "{} has dimensions without a size: give {}",
                args.op,
                example.join(",")
            )));
        }
        let widest = program.tensors.iter().map(|(_, t)| t.dtype).find(|d| d.is_float());
        // A run-time scalar of a user's program has no value on the command line but 1.
        let scalars = program.scalars.iter().map(|(_, s)| (s.name.clone(), 1.0)).collect();
        Ok(Request {
            op: program.name.clone(),
            shape,
            dtype: widest.unwrap_or(dtype),
            program,
            scalars,
        })
    }
}

/// Whether OP is a file rather than a name.
fn is_path(op: &str) -> bool {
    op.ends_with(".tile") || op.contains('/') || op.contains(std::path::MAIN_SEPARATOR)
}

/// Reads, parses and verifies a `.tile` file.
///
/// # Errors
/// [`CliError::Io`] if it can't be read, [`CliError::Source`] with every fault in it.
pub fn read_program(path: &Path) -> Result<Program, CliError> {
    let io = |e: std::io::Error| CliError::Io(format!("can't read {}: {e}", path.display()));
    let metadata = std::fs::metadata(path).map_err(io)?;
    if !metadata.is_file() {
        return Err(CliError::Usage(format!("{} is not a regular file", path.display())));
    }
    if metadata.len() > text::MAX_SOURCE as u64 {
        return Err(CliError::Usage(format!(
            "{} has {} bytes; a program has at most {}",
            path.display(),
            metadata.len(),
            text::MAX_SOURCE
        )));
    }
    let bytes = std::fs::read(path).map_err(io)?;
    let source = String::from_utf8(bytes)
        .map_err(|_| CliError::Usage(format!("{} is not UTF-8 text", path.display())))?;
    text::read(&source).map_err(|error| CliError::Source {
        path: path.to_path_buf(),
        faults: match error {
            ReadError::Parse(errors) => errors
                .into_iter()
                .map(|e| Fault { line: e.loc.line, column: e.loc.column, message: e.message })
                .collect(),
            ReadError::Verify(errors) => errors
                .into_iter()
                .map(|e| Fault {
                    line: e.loc.line,
                    column: e.loc.column,
                    message: format!("{} (rule `{}`)", e.message, e.rule),
                })
                .collect(),
        },
        text: source,
    })
}

/// Parses `rows=37,cols=1537`. Empty text binds nothing.
fn parse_bindings(text: &str) -> Result<Vec<(String, u64)>, CliError> {
    let malformed = |part: &str| {
        CliError::Usage(format!(
            "malformed size `{part}`: a .tile file's sizes are NAME=N joined by commas, as in \
             rows=37,cols=1537"
        ))
    };
    let mut sizes: Vec<(String, u64)> = Vec::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (name, value) = part.split_once('=').ok_or_else(|| malformed(part))?;
        let value = value.trim().parse().map_err(|_| malformed(part))?;
        let name = name.trim();
        if sizes.iter().any(|(known, _)| known == name) {
            return Err(CliError::Usage(format!("dimension `{name}` is given twice")));
        }
        sizes.push((name.to_string(), value));
    }
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bindings_parse_or_say_how() {
        assert!(parse_bindings("").unwrap().is_empty());
        let sizes = parse_bindings("rows=37, cols=1537").unwrap();
        assert_eq!(sizes, [("rows".to_string(), 37), ("cols".to_string(), 1537)]);
        for bad in ["37x1537", "rows=", "rows=-1", "rows=1,", "rows=1,rows=2", "=x"] {
            assert!(parse_bindings(bad).is_err(), "{bad}");
        }
    }
}
