//! Requests for a plan or a graph: flags of `djinn plan` and `djinn srg`, or the query of a request to a server, whose
//! parameters have the flags' names.

use super::{dtype, kv_type};
use crate::{Card, Error, Result, Setup, Target};
use clap::{Arg, Args, FromArgMatches, ValueEnum};
use djinn_device::DType;
use serde::{Serialize, Serializer};

/// The work and the machine that a prediction is for.
#[derive(Clone, Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct WorkArgs {
    /// A card, e.g. rtx-3060, rtx-4090, a100-80, h200 [default: this machine's CPU, as `djinn doctor --save` measured
    /// it, else measured at once]
    #[arg(long, value_name = "NAME", value_parser = Card::find)]
    #[serde(serialize_with = "card_name")]
    pub gpu: Option<&'static Card>,
    /// Instead of the machine's: host memory to device, GB/s
    #[arg(long, value_name = "X", value_parser = rate)]
    pub link_gbps: Option<f64>,
    /// Instead of the machine's: reads of device memory, GB/s
    #[arg(long, value_name = "X", value_parser = rate)]
    pub hbm_gbps: Option<f64>,
    /// Instead of the machine's: matrix products of 16-bit numbers, TFLOP/s
    #[arg(long, value_name = "X", value_parser = rate)]
    pub tflops: Option<f64>,
    /// Tokens of the prompt
    #[arg(long, value_name = "N", default_value_t = 512,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub prompt_len: u32,
    /// Sequences that decode together
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub batch: u32,
}

impl WorkArgs {
    /// The named card, or else `machine`, with the given rates.
    ///
    /// # Errors
    /// As `machine`.
    pub fn target<E>(&self, machine: impl FnOnce() -> Result<Target, E>) -> Result<Target, E> {
        let mut target = match self.gpu {
            Some(card) => Target::card(card),
            None => machine()?,
        };
        let machine = &mut target.machine;
        for (rate, given) in [
            (&mut machine.link, self.link_gbps.map(|rate| rate * 1e9)),
            (&mut machine.memory, self.hbm_gbps.map(|rate| rate * 1e9)),
            (&mut machine.flops, self.tflops.map(|rate| rate * 1e12)),
        ] {
            *rate = given.unwrap_or(*rate);
        }
        Ok(target)
    }
}

/// A request for a plan.
#[derive(Clone, Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct PlanAsked {
    /// The work, and the machine.
    #[command(flatten)]
    #[serde(flatten)]
    pub work: WorkArgs,
    /// Tokens to generate
    #[arg(long, short = 'n', value_name = "N", default_value_t = 128,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub max_tokens: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Budgets and types.
    #[command(flatten)]
    #[serde(flatten)]
    pub memory: Setup,
}

/// A request for a graph.
#[derive(Clone, Debug, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SrgAsked {
    /// What the costs are for
    #[arg(long, value_enum, default_value_t = CostPhase::Decode)]
    pub phase: CostPhase,
    /// Print the graph in Graphviz's DOT
    #[arg(long, conflicts_with = "json")]
    pub dot: bool,
    /// Print the graph as one JSON object
    #[arg(long)]
    pub json: bool,
    /// The work, and the machine.
    #[command(flatten)]
    #[serde(flatten)]
    pub work: WorkArgs,
    /// Element type of the KV cache; int8 takes about half the bytes of f16 [default: f32 on the CPU and for f32 weights, else f16]
    #[arg(long, value_name = "TYPE", value_parser = kv_type())]
    pub kv_dtype: Option<DType>,
    /// Element type of the weights in memory [default: as stored; f16 for quantised ones]
    #[arg(long, value_name = "TYPE", value_parser = dtype())]
    pub dtype: Option<DType>,
}

impl SrgAsked {
    /// Refuses several sequences in a prefill.
    ///
    /// # Errors
    /// One line that says what to do.
    pub fn check(&self) -> Result<()> {
        match self.phase == CostPhase::Decode || self.work.batch == 1 {
            true => Ok(()),
            false => Err(Error::Asked(
                "--batch is for decoding; a prefill is of one sequence: drop it, or take --phase decode"
                    .to_owned(),
            )),
        }
    }
}

/// The phase of costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CostPhase {
    /// A prompt.
    Prefill,
    /// The next token of some sequences.
    Decode,
}

/// Flags as query parameters, without absent ones.
pub fn query(asked: &impl Serialize) -> Vec<(String, String)> {
    let Ok(serde_json::Value::Object(flags)) = serde_json::to_value(asked) else { return Vec::new() };
    let text = |value: serde_json::Value| match value {
        serde_json::Value::Null | serde_json::Value::Bool(false) => None,
        serde_json::Value::String(text) => Some(text),
        other => Some(other.to_string()),
    };
    flags.into_iter().filter_map(|(name, value)| Some((name, text(value)?))).collect()
}

/// The names of a query's parameters: the flags that it can have.
pub fn parameters<T: Args>() -> Vec<String> {
    T::augment_args(clap::Command::new("query"))
        .get_arguments()
        .filter_map(Arg::get_long)
        .map(str::to_owned)
        .collect()
}

/// Flags from query parameters.
///
/// # Errors
/// [`Error::Asked`] for an unknown parameter or an invalid value, in one line.
pub fn of_query<'a, T: Args + FromArgMatches>(
    pairs: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<T> {
    let command = T::augment_args(clap::Command::new("query").no_binary_name(true).disable_help_flag(true));
    let flags = pairs.into_iter().map(|(name, value)| match value {
        "true" => format!("--{name}"),
        value => format!("--{name}={value}"),
    });
    let parsed = command.try_get_matches_from(flags).and_then(|matches| T::from_arg_matches(&matches));
    parsed.map_err(|error| {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default();
        Error::Asked(line.strip_prefix("error: ").unwrap_or(line).to_owned())
    })
}

fn card_name<S: Serializer>(card: &Option<&'static Card>, serializer: S) -> Result<S::Ok, S::Error> {
    card.map(|card| card.name).serialize(serializer)
}

fn rate(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|rate| (0.001..=1e6).contains(rate));
    value.ok_or_else(|| "expected a number from 0.001 to 1000000".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_the_same_after_a_query() {
        let given = [
            ("vram", "1048576"),
            ("gpu", "h200"),
            ("json", "true"),
            ("ctx", "64"),
            ("dtype", "f16"),
            ("encoding", "plain"),
            ("activations", "int8"),
            ("prefill-chunk", "32"),
            ("resident-fraction", "0.5"),
            ("stream-check", "true"),
            ("kv-dtype", "bf16"),
            ("tflops", "1.5"),
            ("batch", "3"),
            ("max-tokens", "7"),
            ("prompt-len", "9"),
        ];
        let asked: PlanAsked = of_query(given).unwrap();
        assert_eq!((asked.memory.vram, asked.memory.context, asked.json), (Some(1 << 20), Some(64), true));
        let mut pairs = query(&asked);
        pairs.sort();
        let again: PlanAsked = of_query(pairs.iter().map(|(name, value)| (&**name, &**value))).unwrap();
        assert_eq!(format!("{again:?}"), format!("{asked:?}"));
        let asked: SrgAsked = of_query([("phase", "prefill"), ("dot", "true")]).unwrap();
        assert_eq!(query(&asked).len(), 4, "{:?}", query(&asked));
        for bad in
            [("vram", "x"), ("none", "1"), ("gpu", "abacus"), ("batch", "0"), ("json", "no"), ("h", "")]
        {
            let error = of_query::<PlanAsked>([bad]).unwrap_err().to_string();
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
