//! Labelled candidates with the inputs of the `whole-launch` model.

use tilewright_plan::Target;
use tilewright_plan::calibrate::{DataError, Dataset, Sample, whole_launch};
use tilewright_plan::policy::whole_launch::{Family, Inputs};

/// One measured candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainingRow {
    /// Case, shape, operator, label and samples.
    pub sample: Sample,
    /// What the model sees of it.
    pub inputs: Inputs,
    /// Whether it is the schedule that would be used in its case without the model. At most one
    /// row a case.
    pub incumbent: bool,
}

/// Training rows of one family on one target.
#[derive(Clone, Debug, PartialEq)]
pub struct Training {
    /// The family.
    pub family: Family,
    /// The target that was measured.
    pub target: String,
    /// The rows.
    pub rows: Vec<TrainingRow>,
}

impl Training {
    /// The rows as a dataset with the designs of the family.
    ///
    /// # Errors
    /// No rows, a label that is no time, or an unknown GPU.
    pub fn dataset(&self) -> Result<Dataset, DataError> {
        let cores = match self.family {
            Family::CpuRows
            | Family::CpuMatrix
            | Family::GpuRegisterRows
            | Family::GpuRegisterMatrix => 1,
            Family::GpuRows | Family::GpuMatrix => {
                let target = Target::by_name(&self.target).ok();
                let cores = target.as_ref().and_then(Target::gpu_facts).map(|gpu| gpu.cores);
                cores.ok_or_else(|| DataError::Target { target: self.target.clone() })?
            }
        };
        self.dataset_of(cores)
    }

    /// As [`Training::dataset`], for a machine of so many cores, which count for GPUs only.
    ///
    /// # Errors
    /// No rows, or a label that is no time.
    pub fn dataset_of(&self, cores: u32) -> Result<Dataset, DataError> {
        let samples = self.rows.iter().map(|r| r.sample.clone()).collect();
        whole_launch::dataset(self.family, cores, samples, &self.inputs())
    }

    /// The inputs of every row.
    pub fn inputs(&self) -> Vec<Inputs> {
        self.rows.iter().map(|r| r.inputs).collect()
    }

    /// The incumbents' rows.
    pub fn incumbents(&self) -> Vec<usize> {
        (0..self.rows.len()).filter(|r| self.rows[*r].incumbent).collect()
    }
}
