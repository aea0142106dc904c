//! How each output column is made: decided once, before the first row.

use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};
use forebay_core::process::OnceBox;
use forebay_core::suggest::{cast_to, in_python};
use forebay_core::{DType, Error, ErrorKind, Result};
use forebay_ops::ImagePipeline;
use forebay_plan::{
    Fill, ImageMode, Lists, Normalized, OnError, OutputKind, PerColumn, valid_column,
};

use crate::encode::EncodeSpec;
use crate::mixes;
use crate::part::{fill_bytes, unfit};

/// What the consumer wants of the columns.
#[derive(Clone, Debug)]
pub struct OutputOptions {
    /// Plain columns stay Arrow arrays; only images and stacks become tensors.
    pub arrow: bool,
    /// Values for nulls.
    pub fill: Option<PerColumn<Fill>>,
    /// Treatment of lists.
    pub lists: PerColumn<Lists>,
}

impl OutputOptions {
    /// For consumers of Arrow: nulls stay nulls and lists stay lists.
    pub fn arrow() -> Self {
        Self { arrow: true, fill: None, lists: PerColumn::All(Lists::Error) }
    }

    fn fill_of(&self, column: &str) -> Option<Fill> {
        self.fill.as_ref()?.get(column).copied()
    }

    fn lists_of(&self, column: &str) -> Lists {
        self.lists.get(column).copied().unwrap_or_default()
    }
}

/// One output column.
#[derive(Clone)]
pub struct OutputSpec {
    /// Its name.
    pub name: Arc<str>,
    /// How it is made.
    pub make: Make,
}

impl OutputSpec {
    /// What is done with a row whose value is bad.
    pub fn on_error(&self) -> OnError {
        match &self.make {
            Make::Image(image) => image.on_error,
            Make::Encode(encode) => encode.image.on_error,
            Make::Dense(_) | Make::Arrow { .. } | Make::List(_) | Make::Label(_) => OnError::Raise,
        }
    }

    /// The column behind it that says which of its values are valid, where there is one.
    pub fn valid(&self) -> Option<&Arc<str>> {
        match &self.make {
            Make::Image(image) => image.valid.as_ref(),
            Make::Encode(encode) => encode.image.valid.as_ref(),
            Make::Dense(_) | Make::Arrow { .. } | Make::List(_) | Make::Label(_) => None,
        }
    }

    /// Whether the first sample decides what the others of the column must be like.
    pub fn is_open(&self) -> bool {
        match &self.make {
            Make::List(list) => list.lists == Lists::Error && list.length.get().is_none(),
            Make::Image(image) => image.mode.get().is_none(),
            Make::Dense(_) | Make::Encode(_) | Make::Arrow { .. } | Make::Label(_) => false,
        }
    }
}

/// Columns start at multiples of this many bytes: a cache line, and the widest vector.
pub const ALIGN: usize = 64;

/// The bytes of a batch of `rows` samples where all widths are fixed; what is not fixed counts as
/// nothing here and is accounted for when it is known.
pub fn batch_bytes(outputs: &[OutputSpec], rows: u64) -> u64 {
    outputs
        .iter()
        .map(|o| match &o.make {
            Make::Dense(d) => (d.width() as u64, false),
            Make::Label(l) => (l.width() as u64, false),
            Make::Image(i) => (i.most_width().unwrap_or(0) as u64, i.valid.is_some()),
            Make::Encode(e) => (0, e.image.valid.is_some()),
            Make::Arrow { .. } | Make::List(_) => (0, false),
        })
        .map(|(width, valid)| {
            let flags = if valid { rows } else { 0 };
            (width * rows).next_multiple_of(ALIGN as u64) + flags.next_multiple_of(ALIGN as u64)
        })
        .sum()
}

/// How a column is made.
#[derive(Clone)]
pub enum Make {
    /// Fixed-width values, gathered row by row.
    Dense(DenseSpec),
    /// Images, decoded and transformed into the slab.
    Image(ImageSpec),
    /// Images, decoded, transformed and encoded again.
    Encode(EncodeSpec),
    /// Kept as Arrow.
    Arrow {
        /// Index in the relational result.
        from: usize,
        /// What the consumer gets: name, type (views become plain), nullability, metadata.
        field: FieldRef,
    },
    /// Lists of numbers.
    List(ListSpec),
    /// Classes, which become shares of classes when the batch is mixed.
    Label(LabelSpec),
}

/// Labels that are mixed.
#[derive(Clone)]
pub struct LabelSpec {
    /// The class of each row, as it is gathered.
    pub dense: DenseSpec,
    /// How many there are.
    pub classes: usize,
}

impl LabelSpec {
    /// What is delivered: one share for each class.
    pub const DTYPE: DType = DType::Float32;

    /// Bytes of one row as it is delivered.
    pub fn width(&self) -> usize {
        self.classes * Self::DTYPE.size()
    }
}

/// Fixed-width values: one column, or several side by side.
#[derive(Clone)]
pub struct DenseSpec {
    /// Indices in the relational result.
    pub from: Vec<usize>,
    /// Their names, for errors.
    pub names: Vec<Arc<str>>,
    /// Element type.
    pub dtype: DType,
    /// Shape of one row; empty for a number.
    pub row: Vec<usize>,
    /// Values for nulls, per source column.
    pub fill: Vec<Option<Fill>>,
}

impl DenseSpec {
    /// Bytes of one row.
    pub fn width(&self) -> usize {
        self.row.iter().product::<usize>() * self.dtype.size()
    }
}

/// An image column.
#[derive(Clone)]
pub struct ImageSpec {
    /// Index in the relational result.
    pub from: usize,
    /// Whether rows were multiplied before: then each of them has draws of its own.
    pub multiplied: bool,
    /// The compiled operators.
    pub pipeline: Arc<ImagePipeline>,
    /// The one mode of the column: declared, or that of the first image.
    pub mode: Arc<OnceBox<ImageMode>>,
    /// What is done with a row whose image is bad.
    pub on_error: OnError,
    /// The column behind it that says which images are valid, where one is delivered.
    pub valid: Option<Arc<str>>,
}

/// A list column.
#[derive(Clone)]
pub struct ListSpec {
    /// Index in the relational result.
    pub from: usize,
    /// Element type.
    pub dtype: DType,
    /// What to do with different lengths.
    pub lists: Lists,
    /// Value for null elements and for padding.
    pub fill: Option<Fill>,
    /// The one length of all lists, once known (dense only).
    pub length: Arc<OnceBox<usize>>,
}

impl ImageSpec {
    /// Bytes of one row at most, before the mode is known.
    pub fn most_width(&self) -> Option<usize> {
        let channels = self.pipeline.mode().map_or(4, ImageMode::channels);
        let shape = self.pipeline.shape(channels)?;
        Some(shape.iter().product::<usize>() * self.pipeline.dtype().size())
    }
}

/// Resolves the outputs of a plan against the relational result's schema.
pub fn resolve(
    normal: &Normalized,
    schema: &SchemaRef,
    options: &OutputOptions,
) -> Result<Vec<OutputSpec>> {
    let index = |name: &str| {
        schema.index_of(name).map_err(|_| Error::internal(format!("column {name} went missing")))
    };
    let filled = options.fill.iter().flat_map(|f| f.columns().map(|c| ("fill", c)));
    for (argument, named) in filled.chain(options.lists.columns().map(|c| ("lists", c))) {
        if !normal.outputs.iter().any(|o| o.name == named || stacked(&o.kind, named)) {
            let names: Vec<&str> = normal.outputs.iter().map(|o| o.name.as_str()).collect();
            return Err(Error::invalid(format!("there is no column {named:?}"))
                .at_place(format!("loader({argument}=...)"))
                .with_hint(forebay_core::suggest::hint(named, names)));
        }
    }
    let outputs: Vec<OutputSpec> = normal
        .outputs
        .iter()
        .map(|output| {
            let name: Arc<str> = output.name.as_str().into();
            let make = match &output.kind {
                OutputKind::Column { from } => {
                    plain(&name, index(from)?, schema.field(index(from)?), options)?
                }
                OutputKind::Image { from, spec, operator_base, multiplied } => {
                    let pipeline = Arc::new(ImagePipeline::new(spec, *operator_base)?);
                    let mode = Arc::new(OnceBox::new());
                    if let Some(declared) = pipeline.mode() {
                        let _ = mode.set(Box::new(declared));
                    }
                    let image = ImageSpec {
                        from: index(from)?,
                        multiplied: *multiplied,
                        pipeline,
                        mode,
                        on_error: spec.on_error,
                        valid: (spec.on_error == OnError::Null).then(|| valid_column(&name).into()),
                    };
                    if spec.encoding().is_some() {
                        let from = schema.field(image.from);
                        Make::Encode(EncodeSpec::new(image, &name, from))
                    } else {
                        Make::Image(image)
                    }
                }
                OutputKind::Label { from, num_classes } => {
                    let (from, fill) = (index(from)?, options.fill_of(&output.name));
                    mixes::label(&name, from, schema.field(from), *num_classes, fill)?
                }
                OutputKind::Stack { from, dtype } => Make::Dense(DenseSpec {
                    names: from.iter().map(|f| f.as_str().into()).collect(),
                    fill: from
                        .iter()
                        .map(|f| options.fill_of(f).or_else(|| options.fill_of(&output.name)))
                        .collect(),
                    from: from
                        .iter()
                        .map(|f| {
                            let i = index(f)?;
                            stackable(schema.field(i))?;
                            Ok(i)
                        })
                        .collect::<Result<_>>()?,
                    dtype: *dtype,
                    row: vec![from.len()],
                }),
            };
            Ok(OutputSpec { name, make })
        })
        .collect::<Result<_>>()?;
    check_fill(&outputs, options)?;
    mixes::of(normal, &outputs)?;
    Ok(outputs)
}

/// Checks fill values against the columns that they are for, rather than at the first null hours later.
/// A value that is named for a column has to fit it; one for all columns has to fit at least one, since
/// those that it does not fit may have no nulls.
fn check_fill(outputs: &[OutputSpec], options: &OutputOptions) -> Result<()> {
    let Some(given) = options.fill.as_ref().filter(|_| !options.arrow) else { return Ok(()) };
    let mut fits = false;
    let mut first = None;
    for output in outputs {
        let (names, dtype): (&[Arc<str>], DType) = match &output.make {
            Make::Dense(spec) | Make::Label(LabelSpec { dense: spec, .. }) => {
                (&spec.names, spec.dtype)
            }
            Make::List(spec) => (std::slice::from_ref(&output.name), spec.dtype),
            Make::Image(_) | Make::Encode(_) | Make::Arrow { .. } => {
                if let PerColumn::Named(pairs) = given
                    && pairs.iter().any(|(name, _)| **name == *output.name)
                {
                    let what = match &output.make {
                        Make::Image(_) => "images".to_owned(),
                        Make::Arrow { field, .. } => format!("type {}", field.data_type()),
                        _ => "another kind".to_owned(),
                    };
                    return Err(Error::invalid(format!("fill is for numbers, and this is a column of {what}"))
                        .at_place("loader(fill=...)")
                        .in_column(&*output.name)
                        .with_hint(format!(
                            "leave {:?} out of fill; its nulls stay None, or give them a value with coalesce in \
                             with_column",
                            output.name
                        )));
                }
                continue;
            }
        };
        for name in names {
            let Some(fill) = given.get(name).or_else(|| given.get(&output.name)) else { continue };
            if fill_bytes(dtype, *fill).is_some() {
                fits = true;
                continue;
            }
            let error = unfit(name, dtype, *fill);
            if matches!(given, PerColumn::Named(_)) {
                return Err(error);
            }
            first.get_or_insert(error);
        }
    }
    first.filter(|_| !fits).map_or(Ok(()), Err)
}

/// Every column of a schema as it is, views included: rows on their way to be worked on further.
pub fn as_they_are(schema: &SchemaRef) -> Vec<OutputSpec> {
    let output = |(from, field): (usize, &FieldRef)| OutputSpec {
        name: field.name().as_str().into(),
        make: Make::Arrow { from, field: Arc::clone(field) },
    };
    schema.fields().iter().enumerate().map(output).collect()
}

fn stacked(kind: &OutputKind, name: &str) -> bool {
    matches!(kind, OutputKind::Stack { from, .. } if from.iter().any(|f| f == name))
}

fn stackable(field: &Field) -> Result<()> {
    match element(field.data_type()) {
        Some(_) => Ok(()),
        None => Err(Error::new(
            ErrorKind::Schema,
            format!("a column of type {} cannot be stacked", field.data_type()),
        )
        .in_column(field.name())
        .with_hint(format!(
            "stack takes numbers and booleans; convert it first, e.g. {}",
            cast_to(field.name(), "DOUBLE")
        ))),
    }
}

/// The tensor element of an Arrow type, where there is one.
pub fn element(data_type: &DataType) -> Option<DType> {
    Some(match data_type {
        DataType::Boolean => DType::Bool,
        DataType::UInt8 => DType::UInt8,
        DataType::Int8 => DType::Int8,
        DataType::UInt16 => DType::UInt16,
        DataType::Int16 => DType::Int16,
        DataType::UInt32 => DType::UInt32,
        DataType::Int32 => DType::Int32,
        DataType::UInt64 => DType::UInt64,
        DataType::Int64 => DType::Int64,
        DataType::Float16 => DType::Float16,
        DataType::Float32 => DType::Float32,
        DataType::Float64 => DType::Float64,
        _ => return None,
    })
}

fn plain(name: &Arc<str>, from: usize, field: &Field, options: &OutputOptions) -> Result<Make> {
    let data_type = field.data_type();
    let arrow = |data_type: DataType| Make::Arrow {
        from,
        field: Arc::new(field.clone().with_name(&**name).with_data_type(data_type)),
    };
    if options.arrow {
        return Ok(arrow(without_views(data_type)));
    }
    let fill = options.fill_of(name);
    let dense = |dtype, row| {
        Make::Dense(DenseSpec {
            from: vec![from],
            names: vec![Arc::clone(name)],
            dtype,
            row,
            fill: vec![fill],
        })
    };
    if let Some(dtype) = element(data_type) {
        return Ok(dense(dtype, Vec::new()));
    }
    match data_type {
        DataType::FixedSizeList(item, n) if element(item.data_type()).is_some() => {
            let dtype = element(item.data_type()).unwrap_or(DType::UInt8);
            return Ok(dense(dtype, vec![usize::try_from(*n).unwrap_or(0)]));
        }
        DataType::List(item) | DataType::LargeList(item) => {
            if let Some(dtype) = element(item.data_type()) {
                let lists = options.lists_of(name);
                let length = Arc::new(OnceBox::new());
                return Ok(Make::List(ListSpec { from, dtype, lists, fill, length }));
            }
        }
        DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Utf8View
        | DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_)
        | DataType::Null => return Ok(arrow(without_views(data_type))),
        DataType::Dictionary(_, values)
            if matches!(**values, DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary) =>
        {
            return Ok(arrow((**values).clone()));
        }
        _ => {}
    }
    let cast = match data_type {
        DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..) => "DOUBLE",
        t if t.is_temporal() => "BIGINT",
        DataType::Dictionary(_, values) if values.is_integer() => "BIGINT",
        DataType::Dictionary(_, values) if values.is_floating() => "DOUBLE",
        _ => {
            return Err(Error::new(
                ErrorKind::Schema,
                format!("a column of type {data_type} has no tensor form"),
            )
            .in_column(&**name)
            .with_hint(format!(
                "leave it out with drop([{}]), or use format=\"arrow\"",
                in_python(name)
            )));
        }
    };
    Err(Error::new(ErrorKind::Schema, format!("a column of type {data_type} has no tensor form"))
        .in_column(&**name)
        .with_hint(format!(
            "convert it with {}, leave it out with drop([{}]), or use format=\"arrow\"",
            cast_to(name, cast),
            in_python(name)
        )))
}

/// The type with views replaced by the plain types that every consumer knows.
pub fn without_views(data_type: &DataType) -> DataType {
    match data_type {
        DataType::BinaryView => DataType::Binary,
        DataType::Utf8View => DataType::Utf8,
        other => other.clone(),
    }
}

/// The Arrow schema of a batch job's output.
pub fn output_schema(outputs: &[OutputSpec], relational: &SchemaRef) -> Result<SchemaRef> {
    let field = |o: &OutputSpec| -> Result<Field> {
        match &o.make {
            Make::Arrow { field, .. } => Ok(field.as_ref().clone()),
            Make::Encode(encode) => Ok(encode.field.as_ref().clone()),
            Make::Dense(d) => forebay_feed::batch::tensor_field(&o.name, d.dtype, &d.row),
            Make::Image(image) => {
                let needs = |what: &str, hint: &str| {
                    Error::invalid(format!("a job that writes images needs {what}"))
                        .in_column(&*o.name)
                        .with_hint(hint.to_owned())
                };
                let mode = image
                    .pipeline
                    .mode()
                    .ok_or_else(|| needs("one mode", "add mode: RGB (or L, RGBA) to map_image"))?;
                let shape = image.pipeline.shape(mode.channels()).ok_or_else(|| {
                    needs("one size", "add an operator that fixes it, e.g. resize: [224, 224]")
                })?;
                forebay_feed::batch::tensor_field(&o.name, image.pipeline.dtype(), &shape)
            }
            Make::Label(label) => {
                forebay_feed::batch::tensor_field(&o.name, LabelSpec::DTYPE, &[label.classes])
            }
            Make::List(_) => Err(Error::internal("a list became a tensor in a job")),
        }
    };
    let valid = |name: &Arc<str>| forebay_feed::batch::tensor_field(name, DType::Bool, &[]);
    let fields = outputs
        .iter()
        .flat_map(|o| std::iter::once(field(o)).chain(o.valid().map(valid)))
        .collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(Schema::new_with_metadata(fields, relational.metadata().clone())))
}
