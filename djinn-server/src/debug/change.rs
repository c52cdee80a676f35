//! A change of activations as requests write it: of tokens of a paused session, or in the list `edits` of steering.

use crate::ApiError;
use crate::body::{Part, in_words};
use crate::steering::check_rows;
use djinn_engine::Edit;
use djinn_srg::Hook;
use serde::Deserialize;
use serde_json::Value;
use std::ops::Range;

/// The most changes, each of adjacent columns of adjacent tokens, that one request makes.
pub(crate) const MOST_EDITS: usize = 1024;

const OPS: [&str; 5] = ["set", "add", "scale", "clamp", "project_out"];
/// Those of a file.
const FILE_OPS: usize = 2;

/// The fields that say what is done to the columns.
pub(crate) const FIELDS: [&str; 7] = ["op", "values", "strength", "factor", "low", "high", "columns"];

pub(crate) struct Change<'a> {
    part: &'a Part,
    op: &'static str,
    /// The values, if they came in a file.
    values: Option<Vec<f32>>,
}

impl<'a> Change<'a> {
    /// The change that `part` describes, with the values of a file, if there is one.
    ///
    /// # Errors
    /// 400 for an unknown `op`.
    pub(crate) fn new(part: &'a Part, values: Option<Vec<f32>>) -> Result<Self, ApiError> {
        let named: Option<String> = part.read("op")?;
        let known = if values.is_some() { &OPS[..FILE_OPS] } else { &OPS[..] };
        let named = named.or_else(|| values.is_some().then(|| OPS[0].to_owned()));
        let op = known.iter().find(|op| Some(**op) == named.as_deref());
        let op = op.ok_or_else(|| part.wrong("op", format_args!("must be one of {}", known.join(", "))))?;
        Ok(Change { part, op, values })
    }

    pub(crate) fn op(&self) -> &'static str {
        self.op
    }

    /// The tokens among `all`, those of the `paused` ones that have values at the hook, as ascending runs of positions.
    pub(crate) fn positions(
        &self,
        paused: &Range<u64>,
        all: &Range<u64>,
    ) -> Result<Vec<Range<u64>>, ApiError> {
        self.runs("positions", all, |position| match paused.contains(&position) {
            true => format!("only position {} has values at this hook, the last that is paused", all.start),
            false => {
                let (first, last) = (paused.start, paused.end - 1);
                format!("position {position} is not among those that are paused, {first} to {last}")
            }
        })
    }

    /// The columns of the hook, as parts of it in ascending order.
    fn columns(&self, hook: &Hook) -> Result<Vec<Hook>, ApiError> {
        let last = hook.columns.1 - 1;
        let outside = |column: u64| format!("`{}` has columns 0 to {last}, not {column}", hook.name);
        let runs = self.runs("columns", &(0..hook.columns.1), outside)?;
        Ok(runs.into_iter().filter_map(|run| hook.part(run)).collect())
    }

    /// What a list, or an object with `from` and `to`, chooses of `all`, as ascending runs; all of it, if the field is
    /// absent.
    fn runs(
        &self,
        name: &'static str,
        all: &Range<u64>,
        outside: impl Fn(u64) -> String,
    ) -> Result<Vec<Range<u64>>, ApiError> {
        let wrong = |message: String| ApiError::field(self.part.place_of(name), message);
        let runs = match self.part.get(name) {
            None => vec![all.clone()],
            Some(list @ Value::Array(_)) => {
                let list = Vec::<u64>::deserialize(list);
                let list = list
                    .map_err(|error| self.part.wrong(name, format_args!("is wrong: {}", in_words(&error))))?;
                if list.is_empty() || !list.is_sorted_by(|a, b| a < b) {
                    return Err(self.part.wrong(name, "must ascend, and hold one at least"));
                }
                if let Some(&one) = list.iter().find(|one| !all.contains(one)) {
                    return Err(wrong(outside(one)));
                }
                list.chunk_by(|a, b| a + 1 == *b).map(|run| run[0]..run[0] + run.len() as u64).collect()
            }
            Some(_) => {
                let part = self.part.part(name)?;
                part.only(&["from", "to"])?;
                let (from, to) = (part.read("from")?, part.read("to")?);
                let run = from.unwrap_or(all.start)..to.unwrap_or(all.end);
                vec![run]
            }
        };
        for run in &runs {
            if run.is_empty() {
                return Err(wrong(format!("there is nothing from {} to {}", run.start, run.end)));
            }
            let one = [run.start, run.end - 1].into_iter().find(|one| !all.contains(one));
            one.map_or(Ok(()), |one| Err(wrong(outside(one))))?;
        }
        Ok(runs)
    }

    /// Values for `tokens` tokens: a row of `width`, or one for each.
    fn values(&self, hook: &Hook, width: usize, tokens: usize) -> Result<Vec<f32>, ApiError> {
        let wrong =
            |error: &dyn std::fmt::Display| self.part.wrong("values", format_args!("is wrong: {error}"));
        let values = match (&self.values, self.part.get("values")) {
            (Some(values), _) => values.clone(),
            (None, None) => return Err(self.part.wrong("values", "is missing")),
            (None, Some(Value::Array(rows))) if rows.first().is_some_and(Value::is_array) => {
                let mut all = Vec::new();
                for (at, row) in rows.iter().enumerate() {
                    let row = Vec::<f32>::deserialize(row).map_err(|error| wrong(&in_words(&error)))?;
                    if row.len() != width {
                        return Err(wrong(&format_args!("row {at} has {} values, not {width}", row.len())));
                    }
                    all.extend(row);
                }
                all
            }
            (None, Some(values)) => {
                Vec::<f32>::deserialize(values).map_err(|error| wrong(&in_words(&error)))?
            }
        };
        check_rows(&hook.name, width, &values, tokens, self.part.place_of("values"))?;
        Ok(values)
    }

    /// The change of each part of the hook, for each run of tokens.
    ///
    /// # Errors
    /// 400 that names the field at fault.
    pub(crate) fn edits(
        &self,
        hook: &Hook,
        runs: &[Range<u64>],
    ) -> Result<Vec<(Hook, Range<u64>, Edit)>, ApiError> {
        let (part, op, parts) = (self.part, self.op, self.columns(hook)?);
        if parts.len() * runs.len() > MOST_EDITS {
            return Err(too_many(part, "columns"));
        }
        let width = parts.iter().map(|part| part.columns.1 as usize).sum();
        let tokens = runs.iter().map(|run| (run.end - run.start) as usize).sum();
        let allowed: &[&str] = match op {
            "set" => &["values"],
            "add" => &["values", "strength"],
            "scale" => &["factor"],
            "clamp" => &["low", "high"],
            _ => &["values"],
        };
        let other = ["values", "strength", "factor", "low", "high"].into_iter();
        if let Some(name) = other.filter(|name| part.get(name).is_some()).find(|name| !allowed.contains(name))
        {
            return Err(part.wrong(name, format_args!("means nothing for `{op}`")));
        }
        let each = || runs.iter().flat_map(|run| parts.iter().map(move |part| (part.clone(), run.clone())));
        let same = |edit: Edit| each().map(|(part, run)| (part, run, edit.clone())).collect::<Vec<_>>();
        match op {
            "scale" => {
                let factor = part.finite("factor")?;
                Ok(same(Edit::scale(factor.ok_or_else(|| part.wrong("factor", "is missing"))?)))
            }
            "clamp" => {
                let (low, high) = (part.finite("low")?, part.finite("high")?);
                if low.is_none() && high.is_none() {
                    return Err(part.wrong("low", "and `high` are missing; give one at least"));
                }
                let (low, high) = (low.unwrap_or(f32::NEG_INFINITY), high.unwrap_or(f32::INFINITY));
                match low <= high {
                    true => Ok(same(Edit::clamp(low, high))),
                    false => Err(part.wrong("low", format_args!("is {low}, above `high`, {high}"))),
                }
            }
            "project_out" if parts.len() > 1 => {
                Err(part.wrong("columns", "of `project_out` must have no gaps"))
            }
            "project_out" => {
                let direction = self.values(hook, width, 1)?;
                match direction.iter().any(|&value| value != 0.0) {
                    true => Ok(same(Edit::along(direction, -1.0))),
                    false => Err(part.wrong("values", "is a direction of length 0, which is none")),
                }
            }
            op => {
                let values = self.values(hook, width, tokens)?;
                let strength = part.finite("strength")?.unwrap_or(1.0);
                if values.iter().any(|value| !(value * strength).is_finite()) {
                    return Err(part.wrong("strength", format_args!("of {strength} makes values infinite")));
                }
                let edit = |values: Vec<f32>| match op {
                    "set" => Edit::set(values),
                    _ => Edit::add(values, strength),
                };
                let is_one_row = values.len() == width;
                let (mut row, mut edits) = (0, Vec::new());
                for run in runs {
                    let count = if is_one_row { 1 } else { (run.end - run.start) as usize };
                    let rows = &values[row * width..(row + count) * width];
                    let mut column = 0;
                    for part in &parts {
                        let next = column + part.columns.1 as usize;
                        let own = rows.chunks_exact(width).flat_map(|row| &row[column..next]);
                        edits.push((part.clone(), run.clone(), edit(own.copied().collect())));
                        column = next;
                    }
                    row += if is_one_row { 0 } else { count };
                }
                Ok(edits)
            }
        }
    }
}

/// 400 for more changes than one request makes.
pub(crate) fn too_many(part: &Part, name: &str) -> ApiError {
    part.wrong(
        name,
        format_args!("leads to more than {MOST_EDITS} changes, each of adjacent columns and tokens"),
    )
}
