//! Mixing the images of a batch as data: torchvision v2's names, parameters and defaults.

/// Mix the images of each batch with each other, and their labels by the same shares.
///
/// For each batch of a rank one of the operators is drawn. The partner of a sample is the one
/// before it in the batch; that of the first is the last.
#[derive(Clone, Debug, PartialEq)]
pub struct MixImages {
    /// The column of images, which `map_image` has decoded.
    pub column: String,
    /// The column of labels: class indices, or one share for each class.
    pub label: String,
    /// The operators; one of them is drawn for each batch.
    pub ops: Vec<MixOp>,
    /// How likely each of them is, relative to the others. Default: all alike.
    pub p: Option<Vec<f64>>,
}

impl MixImages {
    /// The defaults for a column of images and one of labels.
    pub fn new(column: impl Into<String>, label: impl Into<String>, ops: Vec<MixOp>) -> Self {
        Self { column: column.into(), label: label.into(), ops, p: None }
    }

    /// The number of classes. [`Plan::validate`](crate::Plan::validate) has seen that all operators
    /// say the same.
    pub fn num_classes(&self) -> Option<u32> {
        self.ops.first().and_then(MixOp::num_classes)
    }
}

/// One way to mix the images of a batch.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum MixOp {
    /// The weighted mean of two pictures (Zhang et al., 2018).
    MixUp {
        /// Both parameters of the Beta distribution that the weight is drawn from. Default: 1.
        alpha: f64,
        /// How many classes there are. Needed where labels are class indices.
        num_classes: Option<u32>,
    },
    /// A rectangle of one picture pasted into another (Yun et al., 2019).
    CutMix {
        /// Both parameters of the Beta distribution that the area is drawn from. Default: 1.
        alpha: f64,
        /// How many classes there are. Needed where labels are class indices.
        num_classes: Option<u32>,
    },
}

impl MixOp {
    /// The default `alpha`.
    pub const ALPHA: f64 = 1.0;

    /// [`MixOp::MixUp`] with the default weight.
    pub fn mix_up(num_classes: u32) -> Self {
        Self::MixUp { alpha: Self::ALPHA, num_classes: Some(num_classes) }
    }

    /// [`MixOp::CutMix`] with the default area.
    pub fn cut_mix(num_classes: u32) -> Self {
        Self::CutMix { alpha: Self::ALPHA, num_classes: Some(num_classes) }
    }

    /// Both parameters of the Beta distribution.
    pub fn alpha(&self) -> f64 {
        match self {
            Self::MixUp { alpha, .. } | Self::CutMix { alpha, .. } => *alpha,
        }
    }

    /// How many classes there are, where it says.
    pub fn num_classes(&self) -> Option<u32> {
        match self {
            Self::MixUp { num_classes, .. } | Self::CutMix { num_classes, .. } => *num_classes,
        }
    }

    /// The word for this operator in job files; Python's class is the same in camel case.
    pub fn name(&self) -> &'static str {
        match self {
            Self::MixUp { .. } => "mix_up",
            Self::CutMix { .. } => "cut_mix",
        }
    }
}
