//! Expressions over columns, compiled by DataFusion.
