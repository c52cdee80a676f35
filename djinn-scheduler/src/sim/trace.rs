//! Traces as CSV: single requests (Azure's LLM inference traces) and sessions with tool calls (TraceLab).

#[cfg(test)]
mod tests;

use super::workload::{Script, Workload, WorkloadTurn};
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::time::Duration;

const AZURE: [&str; 3] = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"];
const TRACELAB: [&str; 7] = [
    "session_id",
    "arrival_time",
    "round_idx",
    "prefix_len",
    "input_len",
    "output_len",
    "tool_wait_after_ms",
];

/// The most tokens or milliseconds of a field; more is taken for an error.
const MOST: u64 = 1 << 40;

/// Reads rows of `TIMESTAMP,ContextTokens,GeneratedTokens`: each is a session of one turn. Times count from
/// the first row.
pub fn parse_azure(text: &str) -> Result<Workload> {
    let (mut scripts, mut first) = (Vec::new(), None);
    for row in rows(text, &AZURE)? {
        let at = timestamp(&row)?;
        let start = *first.get_or_insert(at);
        let since = at.checked_sub(start);
        let since = since.ok_or_else(|| row.error(0, "earlier than the first row; sort the rows by time"))?;
        let turn = turn(row.positive(1)?, row.positive(2)?, Duration::ZERO);
        scripts.push((since, Script { priority: 0, turns: vec![turn] }));
    }
    Ok(Workload::open(scripts))
}

/// Reads rows of `session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms`, times in
/// milliseconds. A session's rounds count from 0; each has the tokens before it as its prefix.
pub fn parse_tracelab(text: &str) -> Result<Workload> {
    let mut sessions: BTreeMap<u64, (Duration, Script)> = BTreeMap::new();
    let mut order = Vec::new();
    for row in rows(text, &TRACELAB)? {
        let (id, arrival) = (row.number(0)?, Duration::from_millis(row.number(1)?));
        let (start, script) = sessions.entry(id).or_insert_with(|| {
            order.push(id);
            (arrival, Script { priority: 0, turns: Vec::new() })
        });
        let (round, prefix) = (row.number(2)?, row.number(3)?);
        if *start != arrival {
            let was = start.as_millis();
            return Err(row.error(1, &format!("session {id} came at {was} before; give it one arrival time")));
        }
        if round != script.turns.len() as u64 {
            let due = script.turns.len();
            return Err(
                row.error(2, &format!("round {round} where {due} is due; list rounds in order from 0"))
            );
        }
        if prefix != script.tokens() {
            let sum = script.tokens();
            let why = format!("{prefix}, but the rounds before hold {sum} tokens; give their sum");
            return Err(row.error(3, &why));
        }
        let wait = Duration::from_millis(row.number(6)?);
        let (input, output) = (row.positive(4)?, row.positive(5)?);
        script.turns.push(turn(input, output, wait));
    }
    Ok(Workload::open(order.iter().filter_map(|id| sessions.remove(id)).collect()))
}

fn turn(prompt: u64, output: u64, wait: Duration) -> WorkloadTurn {
    let tool = (!wait.is_zero()).then(|| "tool".to_owned());
    WorkloadTurn { prompt, output, tool, wait, hint: None }
}

struct Row<'a> {
    line: usize,
    columns: &'static [&'static str],
    fields: Vec<&'a str>,
}

/// The rows below a header that must be `columns`.
fn rows<'a>(text: &'a str, columns: &'static [&'static str]) -> Result<Vec<Row<'a>>> {
    let mut lines = text.trim_start_matches('\u{feff}').lines().enumerate();
    let header = lines.next().map_or("", |(_, line)| line.trim());
    if !header.split(',').map(str::trim).eq(columns.iter().copied()) {
        let problem = format!("the header is `{}`; it must be `{}`", shown(header), columns.join(","));
        return Err(Error::Trace { line: 1, field: "header", problem });
    }
    let mut rows = Vec::new();
    for (at, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let fields: Vec<_> = line.trim().split(',').map(str::trim).collect();
        if fields.len() != columns.len() {
            let problem =
                format!("{} fields; a row has {}: complete or remove it", fields.len(), columns.len());
            return Err(Error::Trace { line: at + 1, field: "row", problem });
        }
        rows.push(Row { line: at + 1, columns, fields });
    }
    if rows.is_empty() {
        let problem = "the trace has no rows; give at least one".to_owned();
        return Err(Error::Trace { line: 1, field: "row", problem });
    }
    Ok(rows)
}

fn shown(text: &str) -> String {
    text.chars().take(60).collect()
}

impl Row<'_> {
    fn error(&self, column: usize, problem: &str) -> Error {
        Error::Trace { line: self.line, field: self.columns[column], problem: problem.to_owned() }
    }

    fn number(&self, column: usize) -> Result<u64> {
        let field = self.fields[column];
        let value = field.parse().ok().filter(|&value| value <= MOST);
        value.ok_or_else(|| {
            let why =
                format!("`{}` is no whole number from 0 to {MOST}; correct or remove the row", shown(field));
            self.error(column, &why)
        })
    }

    fn positive(&self, column: usize) -> Result<u64> {
        match self.number(column)? {
            0 => Err(self.error(column, "0 tokens; give at least 1, or remove the row")),
            value => Ok(value),
        }
    }
}

/// `YYYY-MM-DD HH:MM:SS[.fraction]` as a time since the year 0.
fn timestamp(row: &Row<'_>) -> Result<Duration> {
    let text = row.fields[0];
    let parse = || -> Option<Duration> {
        let (date, time) = text.split_once([' ', 'T'])?;
        let [year, month, day] = numbers(date, '-')?;
        let (whole, fraction) = time.split_once('.').unwrap_or((time, "0"));
        let [hour, minute, second] = numbers(whole, ':')?;
        let in_range = (1..=12).contains(&month) && (1..=31).contains(&day) && year <= 9_999;
        if !in_range
            || hour > 23
            || minute > 59
            || second > 60
            || !fraction.bytes().all(|b| b.is_ascii_digit())
        {
            return None;
        }
        let seconds = days(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
        let nanos = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
        Some(Duration::new(seconds, nanos))
    };
    parse().ok_or_else(|| {
        row.error(0, &format!("`{}` is no time; write 2023-11-16 18:17:03.9799600", shown(text)))
    })
}

fn numbers(text: &str, separator: char) -> Option<[u64; 3]> {
    let mut parts = text.split(separator);
    let mut next = || parts.next().filter(|part| part.len() <= 4)?.parse::<u16>().ok().map(u64::from);
    let found = [next()?, next()?, next()?];
    parts.next().is_none().then_some(found)
}

/// Days of the Gregorian calendar, counted from 1 March of the year 0. Years begin in March, so that the leap day is
/// the last.
fn days(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.saturating_sub(1), month + 9) };
    year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1
}
