//! `mix_images` among the columns.
//!
//! It marks the images and makes a tensor of the labels. Both may be renamed and moved afterwards;
//! where both are delivered no longer, nothing is mixed.

use forebay_core::Result;

use super::{ColumnKind, Entry, Made, OutputKind, Walk, Why, wrong};
use crate::path::Path;
use crate::plan::MixImages;

/// Images and labels of a batch that are mixed, among the outputs of
/// [`Normalized`](super::Normalized).
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// The step that asks for it.
    pub step: usize,
    /// The number of the images among the outputs.
    pub image: usize,
    /// That of the labels, where they are delivered.
    pub label: Option<usize>,
    /// What is done, as the plan has it. (Its columns are names in the plan.)
    pub spec: MixImages,
    /// Its number among all image operators of the plan: it enters the key of random draws.
    pub operator: u32,
}

/// A step that mixes, before it is known what is delivered.
pub(super) struct Mixing {
    step: usize,
    spec: MixImages,
    operator: u32,
}

impl Walk<'_> {
    pub(super) fn mix_images(&mut self, path: &Path, mix: &MixImages) -> Result<()> {
        let (column, label) = (path.key("column"), path.key("label"));
        let image = self.find(&column, &mix.column)?;
        let at = self.find(&label, &mix.label)?;
        let entry = &self.visible[image];
        let hint = match &entry.made {
            Made::Tensor(OutputKind::Image { .. }) if entry.mixed.is_none() => None,
            Made::Tensor(OutputKind::Image { .. }) => Some(
                "put all operators into one mix_images, which draws one of them for each batch",
            ),
            Made::Column(ColumnKind::Binary | ColumnKind::Unknown) => {
                Some("put the map_image of the column before mix_images")
            }
            _ => Some("name the column of a map_image"),
        };
        if let Some(hint) = hint {
            let held = if entry.mixed.is_some() { "mixed images" } else { entry.describe() };
            let message =
                format!("mix_images mixes decoded images, and {:?} holds {held}", mix.column);
            return Err(wrong(&column, message, hint));
        }
        let entry = &self.visible[at];
        let hint = match &entry.made {
            Made::Column(ColumnKind::Number) if mix.num_classes().is_none() => {
                return Err(wrong(
                    &path.key("ops").index(0),
                    format!("num_classes is missing, and {:?} holds class indices", mix.label),
                    "give all operators the number of classes, for example num_classes: 1000",
                ));
            }
            Made::Column(ColumnKind::Number | ColumnKind::FixedList | ColumnKind::Unknown) => None,
            Made::Tensor(OutputKind::Stack { .. }) if entry.mixed.is_none() => None,
            _ if entry.mixed.is_some() => Some("labels are mixed once, with one column of images"),
            Made::Column(ColumnKind::String) => Some(
                "number the classes first, for example with_column and a CASE over their names",
            ),
            Made::Column(ColumnKind::List) => Some(
                "give the lists one length, for example with_column and arrow_cast(x, \
                 'FixedSizeList(10, Float32)')",
            ),
            Made::Column(ColumnKind::Bool) => {
                Some("convert it first, for example with_column and CAST(x AS INT)")
            }
            _ => Some("name a column of whole numbers, or of fixed-size lists of floats"),
        };
        if let Some(hint) = hint {
            let held = if entry.mixed.is_some() { "mixed labels" } else { entry.describe() };
            let message = format!(
                "labels are class indices or shares of classes, and {:?} holds {held}",
                mix.label
            );
            return Err(wrong(&label, message, hint));
        }
        let mixed = Some(self.mixes.len());
        let step = self.index;
        self.mixes.push(Mixing { step, spec: mix.clone(), operator: self.operators });
        self.operators = self.operators.saturating_add(1);
        self.visible[image].mixed = mixed;
        let entry = &mut self.visible[at];
        entry.mixed = mixed;
        if entry.is_column() {
            entry.made = Made::Tensor(OutputKind::Label {
                from: mix.label.clone(),
                num_classes: mix.num_classes(),
            });
            entry.step = Some(step);
            self.gone(&mix.label, Why::Tensor);
        }
        Ok(())
    }

    /// What is mixed of that which is delivered.
    pub(super) fn mixed(&self) -> Result<Vec<Mix>> {
        let mut mixes = Vec::with_capacity(self.mixes.len());
        for (number, Mixing { step, spec, operator }) in self.mixes.iter().enumerate() {
            let is_image = |e: &Entry| matches!(e.made, Made::Tensor(OutputKind::Image { .. }));
            let place = |image: bool| {
                self.visible.iter().position(|e| e.mixed == Some(number) && is_image(e) == image)
            };
            match (place(true), place(false)) {
                (Some(image), label) => {
                    let (step, spec, operator) = (*step, spec.clone(), *operator);
                    mixes.push(Mix { step, image, label, spec, operator });
                }
                (None, None) => {}
                (None, Some(label)) => {
                    return Err(wrong(
                        &Path::step(*step, "mix_images").key("column"),
                        format!(
                            "a later step leaves the images {:?} out, and the shares of {:?} are theirs",
                            spec.column, self.visible[label].name
                        ),
                        "keep the images, or leave out both",
                    ));
                }
            }
        }
        Ok(mixes)
    }
}
