//! What must be read, and as what.

use forebay_core::{DType, Layout};
use forebay_plan::schedule::{EpochEnd, Shuffle};
use forebay_plan::*;

fn yaml(text: &str) -> Plan {
    Plan::from_yaml(text, "job.yaml").unwrap_or_else(|e| panic!("{text}\n{}", e.report()))
}

fn parquet(plan: &Plan) -> &ParquetSource {
    match &plan.source {
        Source::Parquet(source) => source,
        other => panic!("{other:?}"),
    }
}

fn sink(plan: &Plan) -> &ParquetSink {
    match &plan.sink {
        Some(Sink::Parquet(sink)) => sink,
        other => panic!("{other:?}"),
    }
}

/// The job file of the design, to the letter.
#[test]
fn the_job_file_of_the_design() {
    let text = "
source: { parquet: { uri: data/*.parquet, columns: [image, label] } }
steps:
  - filter: label < 100
  - map_image: { column: image, ops: [ { random_resized_crop: 224 }, random_horizontal_flip ] }
sink: { parquet: { uri: out/ } }
";
    let built = PlanBuilder::parquet(["data/*.parquet"])
        .columns(["image", "label"])
        .filter("label < 100")
        .map_image(MapImage::new(
            "image",
            vec![ImageOp::random_resized_crop([224, 224]), ImageOp::random_horizontal_flip()],
        ))
        .write_parquet("out/")
        .build()
        .unwrap();
    assert_eq!(yaml(text), built);
    assert_eq!(
        built.to_json(),
        concat!(
            r#"{"version":1,"source":{"parquet":{"uri":["data/*.parquet"],"columns":["image","label"]}},"#,
            r#""steps":[{"filter":"label < 100"},{"map_image":{"column":"image","ops":["#,
            r#"{"random_resized_crop":{"size":[224,224],"scale":[0.08,1.0],"ratio":[0.75,1.3333333333333333],"#,
            r#""interpolation":"bilinear","antialias":true}},{"random_horizontal_flip":{"p":0.5}}],"#,
            r#""dtype":"float32","layout":"CHW","quality":"fast","on_error":"raise"}}],"#,
            r#""sink":{"parquet":{"uri":"out/","mode":"error","compression_level":3,"#,
            r#""row_group_bytes":67108864,"file_bytes":536870912}}}"#,
        )
    );
    // Checkpoints hold this number: it must not change by accident.
    assert_eq!(built.hash().to_string(), HASH);
}

const HASH: &str = "a7a257cf476c889517b4040b281b74ed";

#[test]
fn every_key() {
    let plan = yaml(
        "
version: 1
source:
  parquet:
    uri:
      - s3://bucket/a/
      - s3://bucket/a/
    columns: [image, y, no, \"1\", age]
    endpoint: http://127.0.0.1:9000
    region: eu-west-1
    path_style: true
    anonymous: false
steps:
  - select: [image, y]
  - drop: no
  - rename: { y: label, \"a b\": 'c d' }
  - with_column: { name: weight, expr: '1.0 / (label + 1)' }
  - with_column: { twice: label * 2 }
  - limit: 1000
  - filter: >
      label < 100
      AND label > 3
  - map_image:
      column: image
      mode: RGB
      dtype: bfloat16
      layout: HWC
      quality: exact
      on_error: raise
      ops:
        - resize: { size: 256, interpolation: bicubic, max_size: 512, antialias: false }
        - resize: [300, 400]
        - center_crop: 224
        - random_crop: { size: [32, 48], padding: [4, 2], pad_if_needed: true, fill: 255, padding_mode: reflect }
        - random_resized_crop: { size: 224, scale: [0.2, 1], ratio: [1, 1], interpolation: nearest }
        - random_horizontal_flip: 0.25
        - normalize: { mean: [0.485, 0.456, 0.406], std: 0.5 }
  - stack: { columns: [age, price], into: features, dtype: float16 }
sink:
  parquet:
    uri: s3://bucket/out/
    mode: overwrite
    compression_level: 9
    row_group_bytes: 1MiB
    file_bytes: 1048576
    endpoint: https://minio.example/
"
        .replace("std: 0.5", "std: [0.5, 0.5, 0.5]")
        .as_str(),
    );
    let source = parquet(&plan);
    assert_eq!(source.uri, ["s3://bucket/a/", "s3://bucket/a/"]);
    assert_eq!(source.columns.as_deref().unwrap(), ["image", "y", "no", "1", "age"]);
    assert_eq!(source.storage.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
    assert_eq!(source.storage.region.as_deref(), Some("eu-west-1"));
    assert_eq!((source.storage.path_style, source.storage.anonymous), (Some(true), Some(false)));
    assert_eq!(plan.steps[1], Step::Drop(vec!["no".into()]));
    let pairs = vec![("y".into(), "label".into()), ("a b".into(), "c d".into())];
    assert_eq!(plan.steps[2], Step::Rename(pairs));
    assert_eq!(plan.steps[4], Step::WithColumn { name: "twice".into(), expr: "label * 2".into() });
    assert_eq!(plan.steps[6], Step::Filter("label < 100 AND label > 3\n".into()));
    let Step::MapImage(map) = &plan.steps[7] else { panic!() };
    assert_eq!(
        (map.mode, map.dtype, map.layout),
        (Some(ImageMode::Rgb), DType::BFloat16, Layout::Hwc)
    );
    assert_eq!(map.quality, Quality::Exact);
    assert_eq!(map.ops[1], ImageOp::resize(&[300, 400]));
    assert_eq!(
        map.ops[3],
        ImageOp::RandomCrop {
            size: [32, 48],
            padding: Some([4, 2, 4, 2]),
            pad_if_needed: true,
            fill: 255,
            padding_mode: PaddingMode::Reflect,
        }
    );
    assert_eq!(
        map.ops[4],
        ImageOp::RandomResizedCrop {
            size: [224, 224],
            scale: [0.2, 1.0],
            ratio: [1.0, 1.0],
            interpolation: Interpolation::Nearest,
            antialias: true,
        }
    );
    assert_eq!(map.ops[5], ImageOp::RandomHorizontalFlip { p: 0.25 });
    let sink = sink(&plan);
    assert_eq!((sink.mode, sink.compression_level), (WriteMode::Overwrite, 9));
    assert_eq!((sink.row_group_bytes, sink.file_bytes), (1 << 20, 1 << 20));
    assert_eq!(Plan::from_json(&plan.to_json()).unwrap(), plan);
}

/// Whatever is short in a job file is short in JSON, and means the same.
#[test]
fn short_forms_are_the_same_in_both() {
    for (short, long) in [
        ("source: { parquet: a }", "source: { parquet: { uri: [a] } }"),
        ("source: { parquet: [a, b] }", "source: { parquet: { uri: [a, b] } }"),
        (
            "source: { parquet: a }\nsink: { parquet: o }",
            "source: { parquet: { uri: a } }\nsink: { parquet: { uri: o } }",
        ),
        ("source: { parquet: a }\nsteps: ", "source: { parquet: a }\nsteps: []"),
        (
            "source: { parquet: a }\nsteps: [ { select: x } ]",
            "source: { parquet: a }\nsteps: [ { select: [x] } ]",
        ),
        (
            "source: { parquet: a }\nsteps: [ { with_column: { w: x + 1 } } ]",
            "source: { parquet: a }\nsteps: [ { with_column: { expr: x + 1, name: w } } ]",
        ),
        (
            "source: { parquet: a }\nsteps: [ { map_image: { column: i, ops: [ { resize: 9 }, { center_crop: [8, 9] }, { normalize: { mean: 0.5, std: 1 } } ] } } ]",
            "source: { parquet: a }\nsteps: [ { map_image: { column: i, mode: null, ops: [ { resize: { size: [9] } }, { center_crop: { size: [8, 9] } }, { normalize: { mean: [0.5], std: [1.0] } } ] } } ]",
        ),
        (
            "source: { parquet: a }\nsteps: [ { map_image: { column: i, ops: [ random_horizontal_flip ] } } ]",
            "source: { parquet: a }\nsteps: [ { map_image: { column: i, ops: [ { random_horizontal_flip: { p: 0.5 } } ] } } ]",
        ),
        (
            "source: { parquet: a }\nsteps: [ { stack: { columns: x, into: f } } ]",
            "source: { parquet: a }\nsteps: [ { stack: { columns: [x], into: f, dtype: float32 } } ]",
        ),
    ] {
        let (a, b) = (yaml(short), yaml(long));
        assert_eq!(a, b, "{short}");
        assert_eq!(a.hash(), b.hash());
        let json = Node::from_yaml(short, "job.yaml").unwrap().to_json();
        assert_eq!(Plan::from_json(&json).unwrap(), a, "{json}");
    }
}

/// A format alone, and formats with their parameters; what comes out is written out in full.
#[test]
fn encoders() {
    let read = |op: &str| {
        let text = format!(
            "source: {{ parquet: a }}\nsteps: [ {{ map_image: {{ column: i, ops: [ {op} ] }} }} ]"
        );
        let Step::MapImage(map) = yaml(&text).steps.remove(0) else { panic!() };
        assert_eq!(map.dtype, DType::UInt8);
        *map.encoding().unwrap()
    };
    assert_eq!(read("encode_image: JPEG"), Encoding::jpeg());
    assert_eq!(read("encode_image: png"), Encoding::png());
    assert_eq!(read("{ encode_image: { format: WebP } }"), Encoding::webp());
    assert_eq!(
        read(
            "encode_image: { format: JPEG, quality: 90, subsampling: 4:4:4, progressive: true, optimize: true }"
        ),
        Encoding::Jpeg {
            quality: 90,
            subsampling: Subsampling::S444,
            progressive: true,
            optimize: true
        }
    );
    assert_eq!(
        read("encode_image: { format: PNG, compress_level: 0 }"),
        Encoding::Png { compress_level: 0 }
    );
    assert_eq!(
        read("encode_image: { format: WEBP, quality: 0, lossless: true, method: 6, exact: true }"),
        Encoding::WebP { quality: 0, lossless: true, method: 6, exact: true }
    );
    let plan = yaml(
        "source: { parquet: a }\nsteps: [ { map_image: { column: i, ops: [ encode_image: JPEG ], on_error: skip } } ]",
    );
    let long = r#""ops":[{"encode_image":{"format":"JPEG","quality":75,"subsampling":"4:2:0","progressive":false,"optimize":false}}],"dtype":"uint8""#;
    assert!(plan.to_json().contains(long), "{}", plan.to_json());
}

/// Bare words and bare values of the operators on pixels.
#[test]
fn short_operators() {
    let text = r"
source: { parquet: a }
steps:
  - map_image:
      column: image
      ops:
        - random_vertical_flip
        - pad: [1, 2]
        - grayscale: 3
        - color_jitter: 0.25
        - color_jitter: { brightness: [1, 1], contrast: 2, hue: 0.1 }
        - random_rotation: 30
        - gaussian_blur: 5
        - gaussian_blur: { kernel_size: [3, 5], sigma: 2 }
        - trivial_augment_wide
        - rand_augment: 3
        - to_dtype: { dtype: float16, scale: true }
        - random_erasing: { value: random }
";
    let plan = yaml(text);
    let Step::MapImage(map) = &plan.steps[0] else { panic!() };
    assert_eq!(map.dtype, DType::Float16);
    let jitter = |brightness, contrast, hue| ImageOp::ColorJitter {
        brightness,
        contrast,
        saturation: None,
        hue,
    };
    let blur = |kernel_size, sigma| ImageOp::GaussianBlur { kernel_size, sigma };
    let ImageOp::RandAugment { num_ops, magnitude, .. } = map.ops[9] else { panic!() };
    assert_eq!((num_ops, magnitude), (3, 9));
    assert_eq!(
        map.ops[..9],
        [
            ImageOp::RandomVerticalFlip { p: 0.5 },
            ImageOp::Pad {
                padding: [1, 2, 1, 2],
                fill: vec![0],
                padding_mode: PaddingMode::Constant
            },
            ImageOp::Grayscale { num_output_channels: 3 },
            jitter(Some([0.75, 1.25]), None, None),
            // A factor that can only be 1 is none; one beyond 1 begins at 0.
            jitter(None, Some([0.0, 3.0]), Some([-0.1, 0.1])),
            ImageOp::RandomRotation {
                degrees: [-30.0, 30.0],
                interpolation: Interpolation::Nearest,
                expand: false,
                center: None,
                fill: vec![0]
            },
            blur([5, 5], [0.1, 2.0]),
            blur([3, 5], [2.0, 2.0]),
            ImageOp::trivial_augment_wide(),
        ]
    );
    assert_eq!(
        map.ops[11],
        ImageOp::RandomErasing {
            p: 0.5,
            scale: [0.02, 0.33],
            ratio: [0.3, 3.3],
            value: Erase::Random
        }
    );
}

#[test]
fn mixing_in_both_languages() {
    let built = PlanBuilder::parquet(["a"])
        .map_image(MapImage::new("image", vec![ImageOp::random_resized_crop([8, 8])]))
        .mix_images(MixImages {
            p: Some(vec![0.5, 1.0]),
            ..MixImages::new(
                "image",
                "label",
                vec![MixOp::MixUp { alpha: 0.2, num_classes: Some(10) }, MixOp::cut_mix(10)],
            )
        })
        .build()
        .unwrap();
    let read = yaml(
        "
source: { parquet: a }
steps:
  - map_image: { column: image, ops: [ { random_resized_crop: 8 } ] }
  - mix_images:
      column: image
      label: label
      ops: [ { mix_up: { alpha: 0.2, num_classes: 10 } }, { cut_mix: { num_classes: 10 } } ]
      p: [0.5, 1]
",
    );
    assert_eq!(read, built);
    assert_eq!(Plan::from_json(&built.to_json()).unwrap(), built);
    let json = concat!(
        r#"{"mix_images":{"column":"image","label":"label","ops":[{"mix_up":{"alpha":0.2,"num_classes":10}},"#,
        r#"{"cut_mix":{"alpha":1.0,"num_classes":10}}],"p":[0.5,1.0]}}"#
    );
    assert_eq!(built.steps[1].to_json(), json);
    // One operator needs no list, and one with its defaults no mapping.
    let short = yaml(
        "
source: { parquet: a }
steps:
  - mix_images: { column: image, label: shares, ops: cut_mix }
",
    );
    let op = MixOp::CutMix { alpha: 1.0, num_classes: None };
    assert_eq!(short.steps, [Step::MixImages(MixImages::new("image", "shares", vec![op]))]);
    let other = |alpha| {
        let op = MixOp::MixUp { alpha, num_classes: Some(10) };
        let mix = MixImages::new("image", "label", vec![op]);
        PlanBuilder::parquet(["a"]).mix_images(mix).build().unwrap().hash()
    };
    assert_ne!(other(0.2), other(0.3));
}

#[test]
fn anchors_save_typing() {
    let plan = yaml(
        "
source: { parquet: a }
steps:
  - map_image: &photo { column: left, ops: [ { resize: 9 } ], quality: exact }
  - map_image: { <<: *photo, column: right }
",
    );
    let Step::MapImage(map) = &plan.steps[1] else { panic!() };
    assert_eq!((map.column.as_str(), map.quality), ("right", Quality::Exact));
}

#[test]
fn the_hash_covers_what_decides_the_samples() {
    let base = PlanBuilder::parquet(["a"]).columns(["x", "y"]).filter("x > 1");
    let hash = |b: &PlanBuilder<builder::Stepping>| b.clone().build().unwrap().hash();
    let elsewhere = PlanBuilder::parquet(["s3://b/c", "d"])
        .columns(["x", "y"])
        .endpoint("http://h:1")
        .region("r")
        .anonymous(true)
        .filter("x > 1");
    assert_eq!(hash(&base), hash(&elsewhere));
    let written = base.clone().write_parquet("out").build().unwrap();
    assert_eq!(hash(&base), written.hash());
    for other in [
        PlanBuilder::parquet(["a"]).filter("x > 1"),
        PlanBuilder::parquet(["a"]).columns(["y", "x"]).filter("x > 1"),
        PlanBuilder::parquet(["a"]).columns(["x", "y"]).filter("x > 2"),
        base.clone().limit(9),
    ] {
        assert_ne!(hash(&base), hash(&other));
    }
}

#[test]
fn words_of_pin_memory() {
    for (word, meaning) in [
        ("", PinMemory::Auto),
        (r#", "pin_memory": "auto""#, PinMemory::Auto),
        (r#", "pin_memory": true"#, PinMemory::Always),
        (r#", "pin_memory": false"#, PinMemory::Never),
    ] {
        let json = format!(r#"{{"batch_size": 1{word}}}"#);
        let options = LoaderOptions::from_json(&json).unwrap();
        assert_eq!(options.pin_memory, meaning);
        assert_eq!(LoaderOptions::from_json(&options.to_json()).unwrap(), options);
    }
}

#[test]
fn loader_arguments() {
    let options = LoaderOptions::from_json(
        r#"{"global_batch_size": 1024, "shuffle": "none", "seed": 7, "rank": 1, "world_size": 4,
            "epoch_end": "pad", "lanes": 8, "window": 2, "fill": {"age": -1, "price": "nan", "x": 0.5},
            "format": "numpy", "lists": {"tags": "ragged"}, "pin_memory": false, "num_threads": 2,
            "memory_limit": "2GiB", "prefetch": 0, "device": null}"#,
    )
    .unwrap();
    assert_eq!(options.batch, BatchSize::Global(1024));
    assert_eq!(options.batch.global(4), Some(1024));
    assert_eq!((options.shuffle, options.seed), (Shuffle::None, 7));
    assert_eq!((options.rank, options.world_size), (Some(1), Some(4)));
    assert_eq!(options.epoch_end, Some(EpochEnd::Pad));
    assert_eq!((options.lanes, options.window), (Some(8), Some(2)));
    let fill = options.fill.as_ref().unwrap();
    assert_eq!(fill.get("age"), Some(&Fill::Int(-1)));
    assert!(fill.get("price").unwrap().as_f64().is_nan());
    assert_eq!(fill.get("other"), None);
    assert_eq!(fill.columns().collect::<Vec<_>>(), ["age", "price", "x"]);
    assert_eq!(options.lists.get("tags"), Some(&Lists::Ragged));
    assert_eq!(options.pin_memory, PinMemory::Never);
    assert_eq!(options.format, Format::Numpy);
    assert_eq!(options.memory_limit, Some(2 << 30));
    assert_eq!(options.prefetch, Some(0));
    assert_eq!(LoaderOptions::from_json(&options.to_json()).unwrap(), options);

    let least = LoaderOptions::from_json(r#"{"batch_size": 4}"#).unwrap();
    assert_eq!(least, LoaderOptions::new(4));
    assert_eq!(
        least.to_json(),
        r#"{"batch_size":4,"shuffle":"window","seed":0,"format":"torch","lists":"error"}"#
    );
    let node = Node::from_yaml("batch_size: 4\nfill: .nan\n", "x").unwrap();
    let nan = LoaderOptions::from_node(&node).unwrap();
    assert_eq!(nan.fill, Some(PerColumn::All(Fill::Float(f64::NAN))));
    assert_eq!(LoaderOptions::from_json(&nan.to_json()).unwrap(), nan);
}

#[test]
fn json_for_people() {
    let plan = PlanBuilder::parquet(["a", "b"]).limit(3).build().unwrap();
    let text = plan.to_node().to_json_pretty();
    assert_eq!(
        text,
        r#"{
  "version": 1,
  "source": {
    "parquet": {
      "uri": ["a", "b"]
    }
  },
  "steps": [
    {
      "limit": 3
    }
  ]
}"#
    );
    assert_eq!(Plan::from_json(&text).unwrap(), plan);
}
