//! Cases: an operation on one shape.

use serde::{Deserialize, Serialize};
use std::str::FromStr;
use tilewright_ir::ops::{self, EpilogueStep, OpRequest, ShapeForm, Trans};
use tilewright_ir::{DType, Program};

/// Training or hold-out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CaseSet {
    /// Models are fitted on it.
    Training,
    /// Only looked at after the freeze.
    Holdout,
}

/// Rows or products.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CaseFamily {
    /// Row programs: shape [rows, columns].
    Rows,
    /// Products: shape [M, N, K].
    Matrix,
}

/// A case.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Unique name: `softmax-f32-37x1537`.
    pub id: String,
    /// Rows or products.
    pub family: CaseFamily,
    /// The op.
    pub op: String,
    /// Element type.
    pub dtype: String,
    /// Sizes.
    pub shape: Vec<u64>,
    /// Storage of a product's operands, unless it is `nn`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trans: Option<String>,
    /// What follows a product.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub epilogue: Vec<String>,
    /// Most threads of a launch.
    pub threads: u32,
    /// Training or hold-out.
    pub set: CaseSet,
    /// Position in its set.
    pub ordinal: usize,
}

impl Case {
    /// A case of an op of the library.
    ///
    /// # Errors
    /// There is no such op, type or shape.
    pub fn new(
        op: &str,
        dtype: &str,
        shape: &str,
        set: CaseSet,
        threads: u32,
    ) -> Result<Self, String> {
        let info = ops::find(op).map_err(|e| e.to_string())?;
        DType::from_str(dtype).map_err(|e| e.to_string())?;
        let sizes = ops::parse_shape(shape).map_err(|e| e.to_string())?;
        let family = match info.form {
            ShapeForm::Rows => CaseFamily::Rows,
            ShapeForm::Matrix => CaseFamily::Matrix,
            ShapeForm::BatchedMatrix => {
                return Err(format!("`{op}` is batched; studies take rows and plain products"));
            }
        };
        let case = Case {
            id: String::new(),
            family,
            op: info.name.to_string(),
            dtype: dtype.to_string(),
            shape: sizes,
            trans: None,
            epilogue: Vec::new(),
            threads,
            set,
            ordinal: 0,
        }
        .named();
        case.program()?;
        Ok(case)
    }

    /// Sets the options of a product.
    ///
    /// # Errors
    /// A row case has none; there is no such option.
    pub fn set_options(&mut self, trans: Option<&str>, epilogue: &[String]) -> Result<(), String> {
        if self.family == CaseFamily::Rows && (trans.is_some() || !epilogue.is_empty()) {
            return Err(format!("`{}` has no trans and no epilogue", self.op));
        }
        self.trans = trans.filter(|t| *t != "nn").map(str::to_string);
        self.epilogue = epilogue.to_vec();
        *self = self.clone().named();
        self.program().map(|_| ())
    }

    fn named(mut self) -> Self {
        let sizes: Vec<String> = self.shape.iter().map(u64::to_string).collect();
        let mut id = format!("{}-{}-{}", self.op, self.dtype, sizes.join("x"));
        for part in self.trans.iter().chain(&self.epilogue) {
            id.push('-');
            id.push_str(part);
        }
        self.id = id;
        self
    }

    /// The program, with all sizes bound.
    ///
    /// # Errors
    /// An option or size that the op doesn't take.
    pub fn program(&self) -> Result<Program, String> {
        let text = |e: &dyn std::fmt::Display| format!("case {}: {e}", self.id);
        let dtype = DType::from_str(&self.dtype).map_err(|e| text(&e))?;
        let trans = match &self.trans {
            Some(t) => Trans::from_str(t).map_err(|e| text(&e))?,
            None => Trans::default(),
        };
        let epilogue: Result<Vec<EpilogueStep>, String> = self
            .epilogue
            .iter()
            .map(|step| EpilogueStep::from_str(step).map_err(|e| text(&e)))
            .collect();
        let request =
            OpRequest { trans, epilogue: epilogue?, ..OpRequest::shaped(dtype, &self.shape) };
        ops::build(&self.op, &request).map_err(|e| text(&e))
    }

    /// Floating-point operations: 2·M·N·K of a product; none are counted of rows, whose floor is
    /// their memory traffic.
    pub fn flops(&self) -> f64 {
        match self.family {
            CaseFamily::Matrix => 2.0 * self.shape.iter().map(|s| *s as f64).product::<f64>(),
            CaseFamily::Rows => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_has_a_name_that_is_a_file_name() {
        let mut case = Case::new("gemm", "f32", "3x4x5", CaseSet::Training, 2).unwrap();
        assert_eq!((case.id.as_str(), case.flops()), ("gemm-f32-3x4x5", 120.0));
        case.set_options(Some("nt"), &["bias".to_string(), "gelu".to_string()]).unwrap();
        assert_eq!(case.id, "gemm-f32-3x4x5-nt-bias-gelu");
        let text = serde_json::to_string(&case).unwrap();
        assert_eq!(serde_json::from_str::<Case>(&text).unwrap(), case);
    }

    #[test]
    fn what_no_op_takes_is_refused() {
        let new = |op, dtype, shape| Case::new(op, dtype, shape, CaseSet::Training, 1);
        assert!(new("softmix", "f32", "3x4").is_err());
        assert!(new("softmax", "f31", "3x4").is_err());
        assert!(new("softmax", "f32", "3x4x5").is_err());
        assert!(new("bgemm", "f32", "2x3x4x5").is_err());
        let mut rows = new("softmax", "f32", "3x4").unwrap();
        assert!(rows.set_options(Some("nt"), &[]).is_err());
    }
}
