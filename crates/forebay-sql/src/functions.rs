//! Which SQL functions exist, and which are refused and why.
//!
//! A function is offered only if the same arguments give the same result for ever: a row index is
//! built once for a snapshot, and a resumed epoch must evaluate what the first one did. So
//! everything volatile (random, uuid) or tied to the moment of the query (now, current_date) is
//! refused by name, as are aggregates and window functions, which need more than one row.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use arrow::datatypes::DataType;

use crate::df::{
    self, AggregateUDF, ConfigOptions, ContextProvider, DataFusionError, DfResult, ExprPlanner,
    HigherOrderUDF, ScalarUDF, TableReference, TableSource, Volatility, WindowUDF, functions,
    functions_nested,
};
use crate::pictures;

/// Why a function is not offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Another result at every call.
    Volatile,
    /// Many rows in, one value out.
    Aggregate,
    /// Looks at neighbouring rows.
    Window,
}

/// All functions, by lower-case name and alias.
pub(crate) struct Functions {
    scalar: BTreeMap<String, Arc<ScalarUDF>>,
    higher: BTreeMap<String, Arc<HigherOrderUDF>>,
    refused: BTreeMap<String, Refusal>,
    planners: Vec<Arc<dyn ExprPlanner>>,
    options: ConfigOptions,
}

/// The one instance: building it takes milliseconds, and it never changes.
pub(crate) static FUNCTIONS: LazyLock<Functions> = LazyLock::new(Functions::new);

/// Words that other systems use for time and chance, so that they are refused with the reason
/// instead of being merely unknown.
const VOLATILE_ELSEWHERE: [&str; 14] = [
    "current_timestamp",
    "current_time",
    "current_date",
    "localtime",
    "localtimestamp",
    "now",
    "today",
    "getdate",
    "sysdate",
    "rand",
    "random",
    "gen_random_uuid",
    "newid",
    "uuid",
];

/// Window functions by name: refusing them is no reason to compile them.
const WINDOW: [&str; 11] = [
    "row_number",
    "rank",
    "dense_rank",
    "percent_rank",
    "cume_dist",
    "ntile",
    "lag",
    "lead",
    "first_value",
    "last_value",
    "nth_value",
];

impl Functions {
    fn new() -> Self {
        let mut scalar = BTreeMap::new();
        let mut refused = BTreeMap::new();
        let all = functions::all_default_functions()
            .into_iter()
            .chain(functions_nested::all_default_nested_functions())
            .chain(pictures::all());
        for f in all {
            for name in names(f.name(), f.aliases()) {
                if f.signature().volatility == Volatility::Immutable {
                    scalar.insert(name, Arc::clone(&f));
                } else {
                    refused.insert(name, Refusal::Volatile);
                }
            }
        }
        let mut higher = BTreeMap::new();
        for f in functions_nested::all_default_higher_order_functions() {
            for name in names(f.name(), f.aliases()) {
                higher.insert(name, Arc::clone(&f));
            }
        }
        for f in df::all_default_aggregate_functions() {
            for name in names(f.name(), f.aliases()) {
                refused.entry(name).or_insert(Refusal::Aggregate);
            }
        }
        for name in WINDOW {
            refused.entry(name.to_owned()).or_insert(Refusal::Window);
        }
        for name in VOLATILE_ELSEWHERE {
            refused.insert(name.to_owned(), Refusal::Volatile);
            scalar.remove(name);
        }
        // `first_value` and friends are aggregates elsewhere; a scalar function of the name wins.
        refused.retain(|name, _| !scalar.contains_key(name) && !higher.contains_key(name));

        let planners: Vec<Arc<dyn ExprPlanner>> = vec![
            Arc::new(functions::core::planner::CoreFunctionPlanner::default()),
            Arc::new(functions_nested::planner::NestedFunctionPlanner),
            Arc::new(functions_nested::planner::FieldAccessPlanner),
            Arc::new(functions::datetime::planner::DatetimeFunctionPlanner),
            Arc::new(functions::unicode::planner::UnicodeFunctionPlanner),
        ];
        Self { scalar, higher, refused, planners, options: ConfigOptions::default() }
    }

    /// Whether a function of this (lower-case) name is offered.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.scalar.contains_key(name) || self.higher.contains_key(name)
    }

    /// Why a function of this (lower-case) name is refused, if it is.
    pub(crate) fn refusal(&self, name: &str) -> Option<Refusal> {
        self.refused.get(name).copied()
    }

    /// The names that are offered, for suggestions.
    pub(crate) fn names(&self) -> BTreeSet<&str> {
        self.scalar.keys().chain(self.higher.keys()).map(String::as_str).collect()
    }

    /// DataFusion's options: all defaults, never read from the environment.
    pub(crate) fn options(&self) -> &ConfigOptions {
        &self.options
    }
}

fn names<'a>(name: &'a str, aliases: &'a [String]) -> impl Iterator<Item = String> + 'a {
    std::iter::once(name).chain(aliases.iter().map(String::as_str)).map(str::to_lowercase)
}

impl ContextProvider for Functions {
    fn get_table_source(&self, name: TableReference) -> DfResult<Arc<dyn TableSource>> {
        Err(DataFusionError::Plan(format!("there are no tables here: {name}")))
    }

    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        &self.planners
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        self.scalar.get(&name.to_lowercase()).cloned()
    }

    fn get_higher_order_meta(&self, name: &str) -> Option<Arc<HigherOrderUDF>> {
        self.higher.get(&name.to_lowercase()).cloned()
    }

    fn get_aggregate_meta(&self, _name: &str) -> Option<Arc<AggregateUDF>> {
        None
    }

    fn get_window_meta(&self, _name: &str) -> Option<Arc<WindowUDF>> {
        None
    }

    fn get_variable_type(&self, _names: &[String]) -> Option<DataType> {
        None
    }

    fn options(&self) -> &ConfigOptions {
        &self.options
    }

    fn udf_names(&self) -> Vec<String> {
        self.scalar.keys().cloned().collect()
    }

    fn higher_order_function_names(&self) -> Vec<String> {
        self.higher.keys().cloned().collect()
    }

    fn udaf_names(&self) -> Vec<String> {
        Vec::new()
    }

    fn udwf_names(&self) -> Vec<String> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn nothing_volatile_is_offered() {
        for f in FUNCTIONS.scalar.values() {
            assert_eq!(f.signature().volatility, Volatility::Immutable, "{}", f.name());
        }
        for name in ["now", "random", "uuid", "current_date", "current_time"] {
            assert_eq!(FUNCTIONS.refusal(name), Some(Refusal::Volatile), "{name}");
        }
        assert_eq!(FUNCTIONS.refusal("sum"), Some(Refusal::Aggregate));
        assert_eq!(FUNCTIONS.refusal("row_number"), Some(Refusal::Window));
        for name in [
            "abs",
            "lower",
            "date_trunc",
            "regexp_like",
            "array_length",
            "coalesce",
            "nullif",
            "substr",
        ] {
            assert!(FUNCTIONS.knows(name), "{name}");
        }
    }
}
