//! The normal form against a reference that runs the steps one after the other, as written.
//!
//! Both give each delivered column as a term (which source columns, through which expressions and
//! operators) and the rows as the list of filters and limits. The reference knows nothing of hidden
//! columns: its tensors are values like any other.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;

use super::*;
use crate::plan::{Encoding, ImageOp, MixImages, MixOp, ParquetSource};

const POOL: [&str; 8] = ["a", "b", "c", "img", "pic", "A", "im", "x"];

fn source() -> Vec<(String, ColumnKind)> {
    let kind =
        |n: &str| if n == "img" || n == "pic" { ColumnKind::Binary } else { ColumnKind::Number };
    POOL[..6].iter().map(|n| ((*n).to_owned(), kind(n))).collect()
}

/// A column as a term.
#[derive(Clone, Debug, PartialEq)]
enum Term {
    Source(String),
    Expr(Vec<Term>),
    /// What it is decoded from, its first operator, and whether rows were multiplied before.
    Image(Box<Term>, u32, bool),
    Element(Box<Term>),
    Stack(Vec<Term>),
    Label(Box<Term>),
}

/// What decides which rows there are.
#[derive(Clone, Debug, PartialEq)]
enum Rows {
    Filter(Vec<Term>),
    Limit(u64),
    Explode(Term),
}

#[derive(Clone)]
struct Column {
    name: String,
    term: Term,
    /// None for a tensor.
    kind: Option<ColumnKind>,
    /// The first operator of the step that has mixed it.
    mixed: Option<u32>,
}

#[derive(Clone)]
struct Reference {
    columns: Vec<Column>,
    rows: Vec<Rows>,
    operators: u32,
    multiplied: bool,
    mixes: bool,
}

/// Why a step is refused; the reference needs no more.
#[derive(Debug)]
struct Refused;

impl Reference {
    fn new() -> Self {
        let column = |(name, kind): (String, ColumnKind)| Column {
            term: Term::Source(name.clone()),
            name,
            kind: Some(kind),
            mixed: None,
        };
        let columns = source().into_iter().map(column).collect();
        Self { columns, rows: vec![], operators: 0, multiplied: false, mixes: false }
    }

    fn at(&self, name: &str) -> Result<usize, Refused> {
        self.columns.iter().position(|c| c.name == name).ok_or(Refused)
    }

    /// Expressions of the test are sums of columns.
    fn terms(&self, expr: &str) -> Result<Vec<Term>, Refused> {
        expr.split(" + ")
            .map(|name| {
                let column = &self.columns[self.at(name)?];
                column.kind.is_some().then(|| column.term.clone()).ok_or(Refused)
            })
            .collect()
    }

    fn unique(&self) -> Result<(), Refused> {
        let names: HashSet<&str> = self.columns.iter().map(|c| c.name.as_str()).collect();
        (names.len() == self.columns.len() && !names.is_empty()).then_some(()).ok_or(Refused)
    }

    fn step(&mut self, step: &Step) -> Result<(), Refused> {
        if self.mixes && matches!(step, Step::Filter(_) | Step::Limit(_) | Step::Explode(_)) {
            return Err(Refused);
        }
        match step {
            Step::Filter(expr) => self.rows.push(Rows::Filter(self.terms(expr)?)),
            Step::Limit(n) => self.rows.push(Rows::Limit(*n)),
            Step::Explode(name) => {
                let i = self.at(name)?;
                let between = |c: &Column| matches!(c.term, Term::Image(_, _, true));
                if self.columns[i].kind.is_none() || self.columns.iter().any(between) {
                    return Err(Refused);
                }
                let column = &mut self.columns[i];
                self.rows.push(Rows::Explode(column.term.clone()));
                column.term = Term::Element(Box::new(column.term.clone()));
                column.kind = Some(ColumnKind::Unknown);
                self.multiplied = true;
            }
            Step::Select(names) => {
                let at = names.iter().map(|n| self.at(n)).collect::<Result<Vec<_>, _>>()?;
                self.columns = at.into_iter().map(|i| self.columns[i].clone()).collect();
            }
            Step::Drop(names) => {
                for (i, name) in names.iter().enumerate() {
                    if names[..i].contains(name) {
                        return Err(Refused);
                    }
                    self.at(name)?;
                }
                self.columns.retain(|c| !names.contains(&c.name));
            }
            Step::Rename(pairs) => {
                let olds: HashSet<&str> = pairs.iter().map(|(old, _)| old.as_str()).collect();
                let at = pairs.iter().map(|(o, _)| self.at(o)).collect::<Result<Vec<_>, _>>()?;
                if olds.len() != pairs.len() {
                    return Err(Refused);
                }
                for (i, (_, new)) in at.into_iter().zip(pairs) {
                    self.columns[i].name.clone_from(new);
                }
            }
            Step::WithColumn { name, expr } => {
                let column = Column {
                    name: name.clone(),
                    term: Term::Expr(self.terms(expr)?),
                    kind: Some(ColumnKind::Unknown),
                    mixed: None,
                };
                match self.at(name) {
                    Ok(i) => self.columns[i] = column,
                    Err(Refused) => self.columns.push(column),
                }
            }
            Step::MapImage(map) => {
                let i = self.at(&map.column)?;
                let column = &mut self.columns[i];
                if !matches!(column.kind, Some(ColumnKind::Binary | ColumnKind::Unknown)) {
                    return Err(Refused);
                }
                let from = Box::new(column.term.clone());
                column.term = Term::Image(from, self.operators, self.multiplied);
                column.kind = None;
                self.operators += u32::try_from(map.ops.len()).unwrap();
            }
            Step::Stack { columns, into, .. } => {
                let at = columns.iter().map(|n| self.at(n)).collect::<Result<Vec<_>, _>>()?;
                let number = |i: &usize| {
                    matches!(self.columns[*i].kind, Some(ColumnKind::Number | ColumnKind::Unknown))
                };
                let different: HashSet<&usize> = at.iter().collect();
                if !at.iter().all(number) || different.len() != at.len() {
                    return Err(Refused);
                }
                let terms = at.iter().map(|i| self.columns[*i].term.clone()).collect();
                self.columns[at[0]] = Column {
                    name: into.clone(),
                    term: Term::Stack(terms),
                    kind: None,
                    mixed: None,
                };
                let mut i = 0;
                self.columns.retain(|_| {
                    i += 1;
                    !at[1..].contains(&(i - 1))
                });
            }
            Step::MixImages(mix) => {
                let (image, label) = (self.at(&mix.column)?, self.at(&mix.label)?);
                let fresh = |c: &Column| c.mixed.is_none();
                let (i, l) = (&self.columns[image], &self.columns[label]);
                let number = matches!(l.kind, Some(ColumnKind::Number | ColumnKind::Unknown));
                let stack = matches!(l.term, Term::Stack(_)) && fresh(l);
                if !(matches!(i.term, Term::Image(..)) && fresh(i)) || !(number || stack) {
                    return Err(Refused);
                }
                self.mixes = true;
                self.columns[image].mixed = Some(self.operators);
                let l = &mut self.columns[label];
                l.mixed = Some(self.operators);
                if number {
                    (l.term, l.kind) = (Term::Label(Box::new(l.term.clone())), None);
                }
                self.operators += 1;
            }
        }
        self.unique()
    }

    /// What is mixed in the end, as (operator, images, labels); refused where the images are gone.
    fn mixed(&self) -> Result<Vec<(u32, usize, Option<usize>)>, Refused> {
        let all = || self.columns.iter().enumerate();
        let image = |c: &Column| matches!(c.term, Term::Image(..));
        let mut mixed = vec![];
        for (label, column) in all().filter(|(_, c)| !image(c)) {
            let Some(operator) = column.mixed else { continue };
            let with = all().find(|(_, c)| c.mixed == Some(operator) && image(c)).ok_or(Refused)?;
            mixed.push((operator, with.0, Some(label)));
        }
        for (i, column) in all().filter(|(_, c)| image(c)) {
            let Some(operator) = column.mixed else { continue };
            if mixed.iter().all(|(known, ..)| *known != operator) {
                mixed.push((operator, i, None));
            }
        }
        mixed.sort_unstable();
        Ok(mixed)
    }

    fn delivered(&self) -> Vec<(String, Term)> {
        self.columns.iter().map(|c| (c.name.clone(), c.term.clone())).collect()
    }
}

type Delivered = (Vec<(String, Term)>, Vec<Rows>);

/// Runs a normal form: the relational steps on a table that is strict about names, then the
/// outputs. An expression over a column that is not there is the plan's fault; anything else that
/// does not fit is a defect of the normal form.
fn run(normal: &Normalized) -> Result<Delivered, Refused> {
    let mut table: Vec<(String, Term)> =
        source().into_iter().map(|(n, _)| (n.clone(), Term::Source(n))).collect();
    let mut rows = vec![];
    let at = |table: &[(String, Term)], name: &str| table.iter().position(|(n, _)| n == name);
    let terms = |table: &[(String, Term)], expr: &str| {
        expr.split(" + ")
            .map(|n| at(table, n).map(|i| table[i].1.clone()).ok_or(Refused))
            .collect::<Result<Vec<_>, _>>()
    };
    for (_, step) in &normal.relational {
        match step {
            Step::Filter(expr) => rows.push(Rows::Filter(terms(&table, expr)?)),
            Step::Limit(n) => rows.push(Rows::Limit(*n)),
            Step::Explode(name) => {
                let i = at(&table, name).expect("exploded column");
                let list = &mut table[i].1;
                rows.push(Rows::Explode(list.clone()));
                *list = Term::Element(Box::new(list.clone()));
            }
            Step::Select(names) => {
                let find = |n: &String| table[at(&table, n).expect("selected column")].clone();
                table = names.iter().map(find).collect();
            }
            Step::Drop(names) => {
                for name in names {
                    table.remove(at(&table, name).expect("dropped column"));
                }
            }
            Step::Rename(pairs) => {
                let find = |(old, _): &(String, String)| at(&table, old).expect("renamed column");
                let found: Vec<usize> = pairs.iter().map(find).collect();
                for (i, (_, new)) in found.into_iter().zip(pairs) {
                    table[i].0.clone_from(new);
                }
            }
            Step::WithColumn { name, expr } => {
                let term = Term::Expr(terms(&table, expr)?);
                match at(&table, name) {
                    Some(i) => table[i].1 = term,
                    None => table.push((name.clone(), term)),
                }
            }
            Step::MapImage(_) | Step::Stack { .. } | Step::MixImages(_) => {
                panic!("{step:?} is not relational")
            }
        }
        let names: HashSet<&String> = table.iter().map(|(n, _)| n).collect();
        assert_eq!(names.len(), table.len(), "two columns of one name: {table:?}");
        assert!(!table.is_empty(), "a table without columns has no rows to count");
    }
    let mut used = HashSet::new();
    let mut get = |name: &str| {
        assert!(used.insert(name.to_owned()), "{name} has two users");
        table[at(&table, name).expect("column of an output")].1.clone()
    };
    let outputs = normal.outputs.iter().map(|output| {
        let term = match &output.kind {
            OutputKind::Column { from } => get(from),
            OutputKind::Image { from, operator_base, multiplied, .. } => {
                Term::Image(Box::new(get(from)), *operator_base, *multiplied)
            }
            OutputKind::Stack { from, .. } => Term::Stack(from.iter().map(|f| get(f)).collect()),
            OutputKind::Label { from, .. } => Term::Label(Box::new(get(from))),
        };
        (output.name.clone(), term)
    });
    let outputs: Vec<_> = outputs.collect();
    assert_eq!(used.len(), table.len(), "columns that nothing needs: {table:?}");
    Ok((outputs, rows))
}

fn name() -> impl Strategy<Value = String> {
    prop::sample::select(&POOL[..]).prop_map(str::to_owned)
}

fn expr() -> impl Strategy<Value = String> {
    prop::collection::vec(name(), 1..3).prop_map(|names| names.join(" + "))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => expr().prop_map(Step::Filter),
        1 => (0u64..9).prop_map(Step::Limit),
        1 => name().prop_map(Step::Explode),
        1 => prop::sample::subsequence(&POOL[..], 3..9)
            .prop_shuffle()
            .prop_map(|n| Step::Select(n.into_iter().map(str::to_owned).collect())),
        1 => prop::collection::vec(name(), 1..3).prop_map(Step::Drop),
        4 => prop::collection::vec((name(), name()), 1..4).prop_map(Step::Rename),
        5 => (name(), expr()).prop_map(|(name, expr)| Step::WithColumn { name, expr }),
        3 => (name(), 0usize..3).prop_map(|(column, n)| {
            Step::MapImage(MapImage::new(column, vec![ImageOp::random_horizontal_flip(); n]))
        }),
        3 => (prop::collection::vec(name(), 1..4), name()).prop_map(|(columns, into)| Step::Stack {
            columns,
            into,
            dtype: DType::Float32
        }),
        1 => (name(), name()).prop_filter_map("two columns", |(a, b)| (a != b).then(|| mix(&a, &b))),
    ]
}

fn mix(column: &str, label: &str) -> Step {
    Step::MixImages(MixImages::new(column, label, vec![MixOp::mix_up(3)]))
}

/// Steps that mostly fit each other: a step that the reference refuses is kept one time in eight.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((step(), 0u8..8), 0..32).prop_map(|steps| {
        let mut reference = Reference::new();
        let mut kept = vec![];
        let mut broken = false;
        for (step, die) in steps {
            let before = reference.clone();
            let fits = reference.step(&step).is_ok();
            if !fits {
                reference = before;
            }
            let bold = !fits && !broken && die == 0 && kept.len() > 3;
            if fits || bold {
                broken |= bold;
                kept.push(step);
            }
        }
        kept
    })
}

fn plan(steps: Vec<Step>) -> Plan {
    let source = ParquetSource { uri: vec!["x".into()], ..Default::default() };
    Plan { source: Source::Parquet(source), steps, sink: None }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_normal_form_gives_what_the_steps_give(steps in steps()) {
        let mut reference = Reference::new();
        let wanted = steps.iter().try_for_each(|s| reference.step(s));
        let wanted = wanted.and_then(|()| reference.mixed());
        let plan = plan(steps);
        match (wanted, normalize(&plan, &source())) {
            (Ok(mixed), Ok(normal)) => {
                let found: Vec<_> =
                    normal.mixes.iter().map(|m| (m.operator, m.image, m.label)).collect();
                prop_assert_eq!(found, mixed);
                let (outputs, rows) = run(&normal).expect("expressions of a right plan run");
                prop_assert_eq!(outputs, reference.delivered());
                prop_assert_eq!(rows, reference.rows);
            }
            (Err(Refused), Ok(normal)) => {
                // Only an expression may still be wrong, and then it must not run.
                prop_assert!(run(&normal).is_err(), "ran: {:?}", normal);
            }
            (Err(Refused), Err(e)) => {
                prop_assert!(e.place().is_some() && e.hint().is_some(), "{:?}", e);
            }
            (Ok(_), Err(e)) => prop_assert!(false, "refused: {:?}", e),
        }
    }
}

/// The property says little if its plans are short, wrong or simple.
#[test]
fn the_plans_of_the_property_are_worth_it() {
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::TestRunner;

    let mut runner = TestRunner::deterministic();
    let (mut right, mut long, mut away, mut dropped) = (0, 0, 0, 0);
    let strategy = steps();
    for _ in 0..300 {
        let steps = strategy.new_tree(&mut runner).unwrap().current();
        let plan = plan(steps);
        let Ok(normal) = normalize(&plan, &source()) else { continue };
        right += 1;
        long += usize::from(plan.steps.len() >= 5);
        let renames =
            |(_, s): &(usize, Step)| matches!(s, Step::Rename(p) if p[0].1.starts_with("__hidden"));
        away += usize::from(normal.relational.iter().any(renames));
        let drops = |(i, s): &(usize, Step)| {
            matches!(s, Step::Drop(_)) && !matches!(plan.steps[*i], Step::Drop(_))
        };
        dropped += usize::from(normal.relational.iter().any(drops));
    }
    let counts = format!("of 300: {right} right, {long} long, {away} moved, {dropped} dropped");
    assert!(right > 180 && long > 90 && away > 15 && dropped > 12, "{counts}");
}

#[test]
fn what_is_mixed_may_move_and_labels_may_go() {
    let steps = [flip("img"), mix("img", "a"), Step::Rename(vec![("img".into(), "x".into())])];
    let normal = normal(&steps);
    assert_eq!((normal.mixes[0].image, normal.mixes[0].label), (3, Some(0)));
    assert_eq!((normal.mixes[0].operator, normal.mixes[0].step), (1, 1));
    let label = OutputKind::Label { from: "a".into(), num_classes: Some(3) };
    assert_eq!(normal.outputs[0].kind, label);
    let without =
        |last: Step| normalize(&plan(vec![flip("img"), mix("img", "a"), last]), &source());
    let alone = without(Step::Select(list(&["img"]))).unwrap();
    assert_eq!((alone.mixes[0].image, alone.mixes[0].label), (0, None));
    assert!(without(Step::Drop(list(&["img", "a"]))).unwrap().mixes.is_empty());
    let error = without(with("img", "b")).unwrap_err();
    assert_eq!(error.place(), Some("steps[1].mix_images.column"));
    assert!(error.report().contains("leave out both"), "{}", error.report());
}

#[test]
fn only_images_and_labels_are_mixed() {
    let refused = |steps: &[Step], place: &str, text: &str| {
        let report = normalize(&plan(steps.to_vec()), &source()).unwrap_err().report();
        assert!(report.starts_with(place) && report.contains(text), "{report}");
    };
    refused(&[mix("img", "a")], "steps[0].mix_images.column", "put the map_image");
    refused(&[mix("b", "a")], "steps[0].mix_images.column", "name the column of a map_image");
    refused(&[flip("img"), mix("img", "pic")], "steps[1].mix_images.label", "holds bytes");
    let twice = [flip("img"), mix("img", "a"), mix("img", "b")];
    refused(&twice, "steps[2].mix_images.column", "one mix_images");
    let shared = [flip("img"), flip("pic"), mix("img", "a"), mix("pic", "a")];
    refused(&shared, "steps[3].mix_images.label", "labels are mixed once");
    let seen = [flip("img"), mix("img", "a"), stack(&["a", "b"], "x")];
    refused(&seen, "steps[2].stack.columns[0]", "mixed labels");
    let op = MixOp::MixUp { alpha: 1.0, num_classes: None };
    let unnumbered = Step::MixImages(MixImages::new("img", "a", vec![op]));
    refused(&[flip("img"), unnumbered], "steps[1].mix_images.ops[0]", "num_classes is missing");
    refused(
        &[flip("img"), mix("img", "a"), filter("b > 1")],
        "steps[2].filter",
        "before mix_images",
    );
}

fn flip(column: &str) -> Step {
    Step::MapImage(MapImage::new(column, vec![ImageOp::random_horizontal_flip()]))
}

fn stack(columns: &[&str], into: &str) -> Step {
    let columns = columns.iter().map(|c| (*c).to_owned()).collect();
    Step::Stack { columns, into: into.into(), dtype: DType::Float32 }
}

fn filter(expr: &str) -> Step {
    Step::Filter(expr.into())
}

fn list(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

fn with(name: &str, expr: &str) -> Step {
    Step::WithColumn { name: name.into(), expr: expr.into() }
}

fn normal(steps: &[Step]) -> Normalized {
    normalize(&plan(steps.to_vec()), &source()).unwrap()
}

#[test]
fn a_filter_behind_images_needs_no_detour() {
    let normal = normal(&[flip("img"), filter("a > 1"), Step::Limit(3)]);
    assert_eq!(normal.relational, [(1, filter("a > 1")), (2, Step::Limit(3))]);
}

#[test]
fn the_columns_of_a_tensor_that_is_not_delivered_are_not_read() {
    let normal = normal(&[flip("img"), Step::Select(list(&["b", "a"]))]);
    let dropped = list(&["c", "img", "pic", "A"]);
    assert_eq!(normal.relational, [(1, Step::Drop(dropped))]);
    let names: Vec<&str> = normal.outputs.iter().map(|o| o.name.as_str()).collect();
    assert_eq!(names, ["b", "a"]);
}

#[test]
fn a_hidden_column_makes_room_for_a_new_one() {
    let normal = normal(&[stack(&["a", "b"], "a"), with("b", "c")]);
    let away = Step::Rename(vec![("b".into(), "__hidden_0_b".into())]);
    assert_eq!(normal.relational, [(1, away), (1, with("b", "c"))]);
    let from = list(&["a", "__hidden_0_b"]);
    assert_eq!(normal.outputs[0].kind, OutputKind::Stack { from, dtype: DType::Float32 });
    assert_eq!(normal.outputs.last().unwrap().name, "b");
}

#[test]
fn an_encoded_column_is_made_last() {
    let encode = ImageOp::encode_image(Encoding::png());
    let encoded = || Step::MapImage(MapImage::new("img", vec![encode.clone()]));
    let steps = vec![encoded(), filter("img IS NOT NULL")];
    let plan_of_it = plan(steps);
    let normal = normalize(&plan_of_it, &source()).unwrap();
    assert_eq!(
        normal.why_not(&plan_of_it, 1, "img").unwrap(),
        "\"img\" is made by steps[0].map_image when all else is done; move this step before it"
    );
    let error = normalize(&plan(vec![encoded(), encoded()]), &source()).unwrap_err();
    assert!(error.message().contains("images that are encoded again"), "{error}");
}

#[test]
fn an_expression_cannot_see_a_hidden_column() {
    let steps = vec![flip("img"), filter("img IS NOT NULL"), filter("A > 1")];
    let plan = plan(steps);
    let normal = normalize(&plan, &source()).unwrap();
    let away = Step::Rename(vec![("img".into(), "__hidden_0_img".into())]);
    assert_eq!(normal.relational[0], (1, away));
    assert_eq!(
        normal.why_not(&plan, 1, "img").unwrap(),
        "\"img\" is a tensor since steps[0].map_image; move this step before it"
    );
    assert_eq!(normal.why_not(&plan, 0, "img"), None);
    assert_eq!(normal.why_not(&plan, 1, "nowhere"), None);
}

#[test]
fn mentions() {
    for expr in ["a > 1", "1+A", "\"a\"", "b.a", "x='a'", "5a", "abs(a)", "a", "á + a"] {
        assert!(may_mention(expr, "a"), "{expr}");
    }
    for expr in ["b > 1", "label", "a_b", "ba", "a1 > 2", "_a", "éa"] {
        assert!(!may_mention(expr, "a"), "{expr}");
    }
    assert!(may_mention("\"a b\" > 1", "a b"));
    assert!(may_mention("anything", "say \"a\""));
    assert!(may_mention("\"xa-by\"", "a-b"), "odd names are matched anywhere");
}

#[test]
fn fresh_names_are_nobodys() {
    let steps = [stack(&["a", "b"], "f"), with("__hidden_0_a", "c"), with("a", "__hidden_1_a + 1")];
    let normal = normal(&steps);
    let Some((2, Step::Rename(pairs))) = normal.relational.get(1) else {
        panic!("{:?}", normal.relational)
    };
    assert_eq!(pairs.as_slice(), [("a".to_owned(), "__hidden_2_a".to_owned())]);
}

#[test]
fn every_operator_of_a_plan_has_its_own_number() {
    let normal = normal(&[flip("img"), flip("pic"), Step::Drop(list(&["img"]))]);
    let base = normal.outputs.iter().find_map(|o| match o.kind {
        OutputKind::Image { operator_base, .. } => Some(operator_base),
        _ => None,
    });
    assert_eq!(base, Some(1));
}

/// Each wrong name, with the whole report.
#[test]
fn wrong_names_are_named_with_the_reason() {
    let kinds = [
        ("id", ColumnKind::Number),
        ("label", ColumnKind::Number),
        ("path", ColumnKind::String),
        ("image", ColumnKind::Binary),
        ("tags", ColumnKind::List),
        ("vec", ColumnKind::FixedList),
        ("when", ColumnKind::Other),
    ];
    let source: Vec<(String, ColumnKind)> =
        kinds.iter().map(|(n, k)| ((*n).to_owned(), *k)).collect();
    let select = |names: &[&str]| Step::Select(list(names));
    let rename = |old: &str, new: &str| Step::Rename(vec![(old.into(), new.into())]);
    let cases: Vec<(Vec<Step>, &str)> = vec![
        (
            vec![select(&["id", "labl"])],
            "steps[0].select[1]: there is no column \"labl\" here\n  hint: did you mean \"label\"?",
        ),
        (
            vec![Step::Drop(list(&["id"])), select(&["id"])],
            "steps[1].select[0]: there is no column \"id\" here\n  hint: steps[0].drop drops \"id\"",
        ),
        (
            vec![select(&["id"]), Step::Drop(list(&["label"]))],
            "steps[1].drop[0]: there is no column \"label\" here\n  hint: steps[0].select leaves \"label\" out",
        ),
        (
            vec![rename("id", "key"), rename("id", "x")],
            "steps[1].rename.id: there is no column \"id\" here\n  hint: steps[0].rename renames \"id\" to \"key\"",
        ),
        (
            vec![rename("id", "label")],
            "steps[0].rename.id: there is a column \"label\" already\n  hint: choose another name, or drop \"label\" before",
        ),
        (
            vec![Step::Drop(source.iter().map(|(n, _)| n.clone()).collect())],
            "steps[0].drop: no column would be left\n  hint: keep at least one column",
        ),
        (
            vec![flip("path")],
            "steps[0].map_image.column: map_image reads encoded images, and \"path\" holds texts\n  \
             hint: store the images' bytes in a binary column; paths of image files are not followed",
        ),
        (
            vec![flip("label")],
            "steps[0].map_image.column: map_image reads encoded images, and \"label\" holds numbers\n  \
             hint: the column \"image\" holds bytes",
        ),
        (
            vec![flip("image"), flip("image")],
            "steps[1].map_image.column: map_image reads encoded images, and \"image\" holds images that are decoded already\n  \
             hint: put all operators into the ops of one map_image",
        ),
        (
            vec![stack(&["id", "tags"], "f")],
            "steps[0].stack.columns[1]: a stack holds numbers, and \"tags\" holds lists\n  \
             hint: lists are delivered on their own; see the loader's lists argument",
        ),
        (
            vec![stack(&["vec"], "f")],
            "steps[0].stack.columns[0]: a stack holds numbers, and \"vec\" holds fixed-size lists\n  \
             hint: fixed-size lists are dense tensors already; leave it out of the stack",
        ),
        (
            vec![stack(&["when"], "f")],
            "steps[0].stack.columns[0]: a stack holds numbers, and \"when\" holds values that are neither numbers nor bytes\n  \
             hint: convert it with with_column and a SQL CAST, or leave it out of the stack",
        ),
        (
            vec![stack(&["id"], "label")],
            "steps[0].stack.into: there is a column \"label\" already\n  hint: choose another name, or drop \"label\" before",
        ),
        (
            vec![stack(&["id", "label"], "f"), select(&["label"])],
            "steps[1].select[0]: there is no column \"label\" here\n  \
             hint: steps[0].stack puts \"label\" into the tensor \"f\"; move this step before it",
        ),
    ];
    for (steps, report) in cases {
        let error = normalize(&plan(steps), &source).unwrap_err();
        assert_eq!(error.report(), report);
        assert!(error.is_usage());
    }
}

#[test]
fn the_columns_of_the_source_are_checked() {
    let mut plan = plan(vec![]);
    let Source::Parquet(parquet) = &mut plan.source;
    parquet.columns = Some(list(&["c", "a"]));
    let outputs = normalize(&plan, &source()).unwrap().outputs;
    let names: Vec<&str> = outputs.iter().map(|o| o.name.as_str()).collect();
    assert_eq!(names, ["c", "a"]);

    let Source::Parquet(parquet) = &mut plan.source;
    parquet.columns = Some(list(&["c", "pik"]));
    assert_eq!(
        normalize(&plan, &source()).unwrap_err().report(),
        "source.parquet.columns[1]: the dataset has no column \"pik\"\n  hint: did you mean \"pic\"?"
    );

    let twice = [("a".to_owned(), ColumnKind::Number), ("a".to_owned(), ColumnKind::Number)];
    let Source::Parquet(parquet) = &mut plan.source;
    parquet.columns = None;
    let error = normalize(&plan, &twice).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema);
    assert!(error.hint().is_some());
}

#[test]
fn an_explode_takes_a_column() {
    let explode = |name: &str| Step::Explode(name.into());
    let refused = |steps: &[Step]| normalize(&plan(steps.to_vec()), &source()).unwrap_err();
    let error = refused(&[explode("z")]);
    assert_eq!(error.place(), Some("steps[0].explode"));
    let error = refused(&[flip("img"), explode("img")]);
    assert!(error.message().contains("decoded already"), "{error}");
    let error = refused(&[explode("a"), flip("img"), explode("b")]);
    assert!(error.message().contains("between two explodes"), "{error}");
    let normal = normal(&[flip("img"), explode("a"), flip("pic"), filter("a > 1")]);
    assert_eq!(normal.relational, [(1, explode("a")), (3, filter("a > 1"))]);
    let multiplied = normal.outputs.iter().filter_map(|o| match o.kind {
        OutputKind::Image { multiplied, .. } => Some(multiplied),
        _ => None,
    });
    assert_eq!(multiplied.collect::<Vec<_>>(), [false, true]);
}

#[test]
fn images_that_may_be_null_bring_a_column() {
    let null = || MapImage {
        mode: Some(crate::plan::ImageMode::Rgb),
        on_error: OnError::Null,
        ..MapImage::new("img", Vec::new())
    };
    let of = |steps: Vec<Step>| {
        let parquet = ParquetSource { uri: vec!["x".into()], ..Default::default() };
        normalize(&Plan { source: Source::Parquet(parquet), steps, sink: None }, &source())
    };
    let rename = |old: &str, new: &str| Step::Rename(vec![(old.into(), new.into())]);
    let taken = Step::WithColumn { name: "img_valid".into(), expr: "1".into() };
    let error = of(vec![taken.clone(), Step::MapImage(null())]).unwrap_err();
    assert_eq!(error.place(), Some("steps[1].map_image.on_error"));
    assert!(error.message().contains("img_valid"), "{error}");
    // Under another name there is room for both, on either side.
    of(vec![taken.clone(), Step::MapImage(null()), rename("img", "photo")]).unwrap();
    of(vec![Step::MapImage(null()), taken, rename("img_valid", "good")]).unwrap();
    // It is no column of the plan.
    let error = of(vec![Step::MapImage(null()), Step::Select(vec!["img_valid".into()])]);
    assert!(error.unwrap_err().hint().unwrap().contains("\"img\""));
}
