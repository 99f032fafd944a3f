//! NumPy `.npy` files: versions 1 to 3, little-endian, C order.
//!
//! The header is read and judged first; memory is asked for only after the file is known to hold
//! as many bytes as the header promises.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use tilewright_ir::DType;
use tilewright_runtime::{Buffer, RuntimeError};

/// Longest header that is read. NumPy's own are a few hundred bytes.
const MAX_HEADER: usize = 64 << 10;
/// Most dimensions that are accepted; NumPy's own limit.
const MAX_DIMS: usize = 64;
const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// An array that was read.
#[derive(Debug)]
pub struct Array {
    /// Sizes, outermost first; empty for a single element.
    pub shape: Vec<u64>,
    /// The elements in C order.
    pub data: Buffer,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum NpyError {
    #[error("can't read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is not a regular file")]
    NotAFile { path: PathBuf },
    #[error("{path} is not an .npy file: it doesn't start with \\x93NUMPY")]
    Magic { path: PathBuf },
    #[error("{path} has .npy version {major}.{minor}; versions 1.0, 2.0 and 3.0 are read")]
    Version { path: PathBuf, major: u8, minor: u8 },
    #[error("{path} has a malformed .npy header: {detail}")]
    Header { path: PathBuf, detail: String },
    #[error(
        "{path} holds {descr} elements, but {expected} was expected ({numpy}); convert it with \
         `numpy.save(path, array.astype(...))` or choose another --dtype"
    )]
    DType { path: PathBuf, descr: String, expected: DType, numpy: &'static str },
    #[error(
        "{path} is in Fortran (column-major) order; save it with numpy.ascontiguousarray(array)"
    )]
    FortranOrder { path: PathBuf },
    #[error(
        "{path} is truncated or has trailing bytes: its header promises {expected} bytes of \
         data, the file has {found}"
    )]
    Length { path: PathBuf, expected: u64, found: u64 },
    #[error(transparent)]
    Memory(#[from] RuntimeError),
}

impl NpyError {
    /// Whether the operating system failed, rather than the file's content being wrong.
    pub fn is_io(&self) -> bool {
        matches!(self, NpyError::Read { .. })
    }
}

/// The type codes that stand for a dtype. NumPy has no bfloat16: its bits travel as `u2` or `V2`.
fn codes(dtype: DType) -> (&'static [&'static str], &'static str) {
    match dtype {
        DType::F32 => (&["<f4"], "numpy.float32, '<f4'"),
        DType::F64 => (&["<f8"], "numpy.float64, '<f8'"),
        DType::F16 => (&["<f2"], "numpy.float16, '<f2'"),
        DType::BF16 => (&["<u2", "|V2", "<V2"], "bfloat16 bits as '<u2' or '|V2'"),
        DType::I32 => (&["<i4"], "numpy.int32, '<i4'"),
        DType::Bool => (&["|b1"], "numpy.bool_, '|b1'"),
    }
}

/// Reads an array of the expected element type.
///
/// # Errors
/// Everything in [`NpyError`]; nothing is allocated before the header and the length agree.
pub fn read(path: &Path, expected: DType) -> Result<Array, NpyError> {
    let path_buf = || path.to_path_buf();
    let io = |source| NpyError::Read { path: path.to_path_buf(), source };
    let mut file = File::open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() {
        return Err(NpyError::NotAFile { path: path_buf() });
    }
    let (header, header_bytes) = read_header(&mut file, path)?;
    let fields =
        parse_header(&header).map_err(|detail| NpyError::Header { path: path_buf(), detail })?;
    let (accepted, numpy) = codes(expected);
    if !accepted.contains(&fields.descr.as_str()) {
        return Err(NpyError::DType { path: path_buf(), descr: fields.descr, expected, numpy });
    }
    // An array with at most one dimension longer than 1 is the same in both orders.
    if fields.fortran_order && fields.shape.iter().filter(|n| **n > 1).count() > 1 {
        return Err(NpyError::FortranOrder { path: path_buf() });
    }
    let elements = fields.shape.iter().try_fold(1u64, |product, n| product.checked_mul(*n));
    let bytes = elements.and_then(|n| n.checked_mul(expected.bytes())).ok_or_else(|| {
        NpyError::Header { path: path_buf(), detail: "its shape overflows".to_string() }
    })?;
    let found = metadata.len().saturating_sub(header_bytes);
    if found != bytes {
        return Err(NpyError::Length { path: path_buf(), expected: bytes, found });
    }
    let elements = usize::try_from(elements.unwrap_or(0)).map_err(|_| NpyError::Header {
        path: path_buf(),
        detail: "its shape exceeds the address space".to_string(),
    })?;
    let mut data = Buffer::zeros(expected, elements)?;
    file.read_exact(data.as_bytes_mut()).map_err(io)?;
    Ok(Array { shape: fields.shape, data })
}

/// Reads magic, version and header text; returns the text and the offset of the data.
fn read_header(file: &mut File, path: &Path) -> Result<(String, u64), NpyError> {
    let short = |what: &str| NpyError::Header {
        path: path.to_path_buf(),
        detail: format!("the file ends inside {what}"),
    };
    let mut prefix = [0u8; 8];
    let mut magic_len = 0;
    while magic_len < prefix.len() {
        match file.read(&mut prefix[magic_len..]) {
            Ok(0) => break,
            Ok(n) => magic_len += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(source) => return Err(NpyError::Read { path: path.to_path_buf(), source }),
        }
    }
    if magic_len < 6 || &prefix[..6] != MAGIC {
        return Err(NpyError::Magic { path: path.to_path_buf() });
    }
    if magic_len < 8 {
        return Err(short("its version"));
    }
    let (major, minor) = (prefix[6], prefix[7]);
    let length_bytes = match (major, minor) {
        (1, 0) => 2,
        (2, 0) | (3, 0) => 4,
        _ => return Err(NpyError::Version { path: path.to_path_buf(), major, minor }),
    };
    let mut length = [0u8; 4];
    file.read_exact(&mut length[..length_bytes]).map_err(|_| short("the header's length"))?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MAX_HEADER {
        return Err(NpyError::Header {
            path: path.to_path_buf(),
            detail: format!("it claims {length} bytes, at most {MAX_HEADER} are read"),
        });
    }
    let mut text = vec![0u8; length];
    file.read_exact(&mut text).map_err(|_| short("the header"))?;
    let text = String::from_utf8(text).map_err(|_| NpyError::Header {
        path: path.to_path_buf(),
        detail: "it is not text".to_string(),
    })?;
    Ok((text, (8 + length_bytes + length) as u64))
}

#[derive(Debug, PartialEq)]
struct Header {
    descr: String,
    fortran_order: bool,
    shape: Vec<u64>,
}

/// Parses the dictionary literal of a header: the keys `descr` (a string), `fortran_order`
/// (`True` or `False`) and `shape` (a tuple of integers), each once, in any order.
fn parse_header(text: &str) -> Result<Header, String> {
    let mut scan = Scan { rest: text.trim() };
    let (mut descr, mut order, mut shape) = (None, None, None);
    scan.expect('{')?;
    while !scan.take('}') {
        let key = scan.string()?;
        scan.expect(':')?;
        let repeated = match key.as_str() {
            "descr" => descr.replace(scan.string()?).is_some(),
            "fortran_order" => order.replace(scan.boolean()?).is_some(),
            "shape" => shape.replace(scan.tuple()?).is_some(),
            other => return Err(format!("unknown key '{other}'")),
        };
        if repeated {
            return Err(format!("key '{key}' appears twice"));
        }
        if !scan.take(',') {
            scan.expect('}')?;
            break;
        }
    }
    if !scan.rest.trim().is_empty() {
        return Err("text after the dictionary".to_string());
    }
    match (descr, order, shape) {
        (Some(descr), Some(fortran_order), Some(shape)) => {
            Ok(Header { descr, fortran_order, shape })
        }
        (None, ..) => Err("key 'descr' is missing".to_string()),
        (_, None, _) => Err("key 'fortran_order' is missing".to_string()),
        _ => Err("key 'shape' is missing".to_string()),
    }
}

struct Scan<'a> {
    rest: &'a str,
}

impl Scan<'_> {
    fn take(&mut self, c: char) -> bool {
        self.rest = self.rest.trim_start();
        match self.rest.strip_prefix(c) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, c: char) -> Result<(), String> {
        if self.take(c) {
            return Ok(());
        }
        match self.rest.chars().next() {
            Some(found) => Err(format!("expected '{c}', found '{found}'")),
            None => Err(format!("expected '{c}', found the end")),
        }
    }

    fn string(&mut self) -> Result<String, String> {
        let quote = if self.take('\'') {
            '\''
        } else if self.take('"') {
            '"'
        } else if self.rest.starts_with('[') {
            return Err("structured element types are not supported".to_string());
        } else {
            return Err("expected a quoted string".to_string());
        };
        let end = self.rest.find(quote).ok_or("a string doesn't end")?;
        let value = self.rest[..end].to_string();
        self.rest = &self.rest[end + 1..];
        Ok(value)
    }

    fn boolean(&mut self) -> Result<bool, String> {
        self.rest = self.rest.trim_start();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(rest) = self.rest.strip_prefix(word) {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err("expected True or False".to_string())
    }

    fn tuple(&mut self) -> Result<Vec<u64>, String> {
        self.expect('(')?;
        let mut values = Vec::new();
        while !self.take(')') {
            if values.len() == MAX_DIMS {
                return Err(format!("more than {MAX_DIMS} dimensions"));
            }
            self.rest = self.rest.trim_start();
            let digits = self.rest.bytes().take_while(u8::is_ascii_digit).count();
            let value = self.rest[..digits]
                .parse()
                .map_err(|_| "expected a size in 'shape'".to_string())?;
            values.push(value);
            self.rest = &self.rest[digits..];
            if !self.take(',') {
                self.expect(')')?;
                break;
            }
        }
        Ok(values)
    }
}

/// Writes an array as version 1.0 in C order. bf16 is written as its bits, `<u2`.
///
/// # Errors
/// Those of the writer.
pub fn write(out: &mut impl Write, shape: &[u64], data: &Buffer) -> std::io::Result<()> {
    let descr = codes(data.dtype()).0.first().copied().unwrap_or("<f4");
    let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
    let tuple = match sizes.as_slice() {
        [one] => format!("({one},)"),
        many => format!("({})", many.join(", ")),
    };
    let dict = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple}, }}");
    // Magic, version, length and header end on a multiple of 64, the last byte a newline.
    let length = (10 + dict.len() + 1).next_multiple_of(64) - 10;
    let length16 = u16::try_from(length)
        .map_err(|_| std::io::Error::other("the shape has too many dimensions"))?;
    out.write_all(MAGIC)?;
    out.write_all(&[1, 0])?;
    out.write_all(&length16.to_le_bytes())?;
    out.write_all(format!("{dict:<width$}\n", width = length - 1).as_bytes())?;
    out.write_all(data.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temp(name: &str, bytes: &[u8]) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("tilewright-npy-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes
    }

    fn read_bytes(name: &str, bytes: &[u8], dtype: DType) -> Result<Array, NpyError> {
        let path = temp(name, bytes);
        let result = read(&path, dtype);
        std::fs::remove_file(path).unwrap();
        result
    }

    #[test]
    fn what_was_written_reads_back() {
        let shapes: [&[u64]; 4] = [&[], &[3], &[2, 3], &[0, 5]];
        for dtype in DType::TENSOR {
            for shape in shapes {
                let n: u64 = shape.iter().product();
                let values: Vec<f64> = (0..n).map(|i| i as f64 - 2.0).collect();
                let data = Buffer::from_f64(dtype, &values).unwrap();
                let mut bytes = Vec::new();
                write(&mut bytes, shape, &data).unwrap();
                assert_eq!((bytes.len() - data.bytes()) % 64, 0);
                let back = read_bytes("round", &bytes, dtype).unwrap();
                assert_eq!(back.shape, shape);
                assert_eq!(back.data.to_f64(), values);
            }
        }
    }

    #[test]
    fn reads_versions_2_and_3_and_other_spellings() {
        let header = "{\"shape\":(2,),\"fortran_order\":False,\"descr\":\"<f4\"}";
        for version in [2u8, 3] {
            let mut bytes = b"\x93NUMPY".to_vec();
            bytes.extend([version, 0]);
            bytes.extend((header.len() as u32).to_le_bytes());
            bytes.extend(header.as_bytes());
            bytes.extend([0u8; 8]);
            assert_eq!(read_bytes("versions", &bytes, DType::F32).unwrap().shape, [2]);
        }
        let bf16 = file("{'descr': '|V2', 'fortran_order': False, 'shape': (1,), }", &[0x80, 0x3f]);
        assert_eq!(read_bytes("bf16", &bf16, DType::BF16).unwrap().data.to_f64(), [1.0]);
    }

    #[test]
    fn every_fault_has_its_error() {
        let good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }";
        let cases: Vec<(&str, Vec<u8>, &str)> = vec![
            ("magic", b"PK\x03\x04".to_vec(), "is not an .npy file"),
            ("empty", vec![], "is not an .npy file"),
            ("version", b"\x93NUMPY\x09\x00\x00\x00".to_vec(), "version 9.0"),
            ("cut-version", b"\x93NUMPY\x01".to_vec(), "ends inside"),
            ("cut-header", file(good, &[])[..30].to_vec(), "ends inside the header"),
            ("truncated", file(good, &[0; 15]), "promises 16 bytes of data, the file has 15"),
            ("trailing", file(good, &[0; 17]), "promises 16 bytes of data, the file has 17"),
            ("f8", file(&good.replace("<f4", "<f8"), &[0; 32]), "holds <f8 elements, but f32"),
            ("big-endian", file(&good.replace('<', ">"), &[0; 16]), "holds >f4 elements"),
            ("fortran", file(&good.replace("False", "True"), &[0; 16]), "Fortran"),
            (
                "no-shape",
                file("{'descr': '<f4', 'fortran_order': False}", &[]),
                "'shape' is missing",
            ),
            ("twice", file("{'descr': '<f4', 'descr': '<f4'}", &[]), "appears twice"),
            ("key", file("{'dtype': '<f4'}", &[]), "unknown key 'dtype'"),
            ("struct", file("{'descr': [('a', '<f4')]}", &[]), "structured"),
            ("negative", file(&good.replace("2, 2", "-2, 2"), &[]), "expected a size"),
            ("huge", file(&good.replace("2, 2", "99999999999999999999"), &[]), "expected a size"),
            ("overflow", file(&good.replace("2, 2", "9999999999, 9999999999"), &[]), "overflows"),
            ("open", file("{'descr': '<f4", &[]), "doesn't end"),
        ];
        for (name, bytes, message) in cases {
            let error = read_bytes(name, &bytes, DType::F32).unwrap_err();
            assert!(error.to_string().contains(message), "{name}: {error}");
            assert!(!error.is_io(), "{name}");
        }
        assert!(read(Path::new("/nonexistent/x.npy"), DType::F32).unwrap_err().is_io());
        let directory = read(&std::env::temp_dir(), DType::F32).unwrap_err();
        assert!(matches!(directory, NpyError::NotAFile { .. }));
    }

    #[test]
    fn one_dimensional_fortran_order_is_harmless() {
        let bytes = file("{'descr': '<f4', 'fortran_order': True, 'shape': (1, 2), }", &[0; 8]);
        assert_eq!(read_bytes("vector", &bytes, DType::F32).unwrap().shape, [1, 2]);
    }
}
