//! The tensors that a run reads: `.npy` files or seeded random data.

use crate::error::CliError;
use crate::npy;
use std::path::PathBuf;
use tilewright_engine::Signature;
use tilewright_engine::check::LaunchValues;
use tilewright_engine::inputs::{Contents, random};
use tilewright_ir::Program;
use tilewright_ir::program::Access;

/// Assigns files to the tensors that are read: all of them in order, or each by `NAME=FILE`. The
/// result has one entry per tensor that is read, or is empty without any file.
///
/// # Errors
/// Too few or too many files, unknown or repeated names.
pub fn assign(signature: &Signature, given: &[String]) -> Result<Vec<PathBuf>, CliError> {
    if given.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<&str> = signature
        .tensors
        .iter()
        .filter(|t| t.access != Access::Out)
        .map(|t| t.name.as_str())
        .collect();
    let wanted = || format!("one for each of: {}", names.join(", "));
    if given.len() != names.len() {
        return Err(CliError::Usage(format!(
            "--input takes {} file(s), {}; {} given",
            names.len(),
            wanted(),
            given.len()
        )));
    }
    let mut files: Vec<Option<PathBuf>> = vec![None; names.len()];
    for (position, text) in given.iter().enumerate() {
        let named = text
            .split_once('=')
            .and_then(|(name, file)| names.iter().position(|n| *n == name).map(|at| (at, file)));
        let (at, file) = named.unwrap_or((position, text.as_str()));
        if files[at].replace(PathBuf::from(file)).is_some() {
            return Err(CliError::Usage(format!(
                "--input names `{}` twice; it takes {}",
                names[at],
                wanted()
            )));
        }
    }
    // As many files as names, and none twice: every name has one.
    Ok(files.into_iter().flatten().collect())
}

/// Reads the files, or makes random data where there are none.
///
/// # Errors
/// Unreadable files, wrong types or shapes, too little memory.
pub fn load(
    program: &Program,
    signature: &Signature,
    values: &LaunchValues,
    files: Vec<PathBuf>,
    seed: u64,
) -> Result<Contents, CliError> {
    if files.is_empty() {
        return Ok(random(program, values, seed)?);
    }
    let sizes = values.sizes(signature)?;
    let mut contents = Contents { inputs: Vec::new(), initial: Vec::new() };
    let mut files = files.into_iter();
    for (index, tensor) in signature.tensors.iter().enumerate() {
        if tensor.access == Access::Out {
            continue;
        }
        let Some(path) = files.next() else { continue };
        let array = npy::read(&path, tensor.dtype)?;
        let wanted = signature.shape(index, &sizes);
        if array.shape != wanted {
            let text = |shape: &[u64]| {
                let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
                format!("({})", sizes.join(", "))
            };
            return Err(CliError::Usage(format!(
                "{} has shape {}, but tensor `{}` has shape {}",
                path.display(),
                text(&array.shape),
                tensor.name,
                text(&wanted)
            )));
        }
        if signature.span(index, &sizes) != array.data.len() as u64 {
            return Err(CliError::Usage(format!(
                "tensor `{}` has padded rows, which an .npy file can't fill",
                tensor.name
            )));
        }
        match tensor.access {
            Access::InOut => contents.initial.push(array.data),
            Access::In | Access::Out => contents.inputs.push(array.data),
        }
    }
    Ok(contents)
}
