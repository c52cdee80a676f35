//! Experiment 2 through a network as Markdown.

use super::{Column, circumstances, number, table};
use crate::document::Document;
use crate::exp2::remote::{Distributed, Sent};
use crate::size::human;

/// A place, and what a first token and a later one take there.
type Times<'a> = (&'a str, Option<f64>, Option<f64>);

pub(crate) fn exp2_remote(document: &Document<Distributed>) -> String {
    let Distributed { config, medians, .. } = &document.body;
    let mut text = circumstances(document);
    text += &format!(
        "\n{} as {} at {} (version {}); {}-token prompts, {} further tokens, medians of {} answers. A request that does no work \
         takes {} ms there and back.\n",
        config.model,
        config.name,
        config.server,
        config.server_version,
        config.prompt,
        config.tokens - 1,
        config.runs,
        number(document.body.round_trip_ms, 3)
    );
    let ways = [("the model", document.body.push), ("the same again", document.body.again)];
    let ways: Vec<(&str, Sent)> = ways.iter().filter_map(|(name, sent)| Some((*name, (*sent)?))).collect();
    if !ways.is_empty() {
        let columns: [Column<'_, &(&str, Sent)>; 7] = [
            ("sent", &|(name, _)| (*name).to_owned()),
            ("bytes", &|(_, sent)| sent.pushed.bytes.to_string()),
            ("sent bytes", &|(_, sent)| sent.pushed.sent_bytes.to_string()),
            ("pieces", &|(_, sent)| sent.pushed.pieces.to_string()),
            ("sent pieces", &|(_, sent)| sent.pushed.sent_pieces.to_string()),
            ("s", &|(_, sent)| number(sent.seconds, 3)),
            ("GB/s", &|(_, sent)| number(sent.pushed.sent_bytes as f64 / sent.seconds / 1e9, 3)),
        ];
        text += &format!("\n{}", table(1, &ways, &columns));
    }
    let local = format!("this machine, {} in {}", config.device, human(config.vram_bytes));
    let rows: [Times<'_>; 4] = [
        ("at the client", Some(medians.ttft_ms), Some(medians.tpot_ms)),
        ("at the server", Some(medians.server_ttft_ms), Some(medians.server_tpot_ms)),
        ("the network", Some(medians.network_ttft_ms), Some(medians.network_ms_per_token)),
        (local.as_str(), medians.local_ttft_ms, medians.local_tpot_ms),
    ];
    let columns: [Column<'_, &Times<'_>>; 3] = [
        ("", &|(name, ..)| (*name).to_owned()),
        ("TTFT ms", &|(_, ttft, _)| number(*ttft, 2)),
        ("ms/token (mean)", &|(.., tpot)| number(*tpot, 3)),
    ];
    text += &format!("\n{}", table(1, &rows, &columns));
    text += &format!("\nA token takes {} bytes of an answer's body. ", number(medians.bytes_per_token, 1));
    text += match document.body.same_tokens {
        Some(true) => "The tokens are this machine's.\n",
        Some(false) => "The tokens are NOT this machine's.\n",
        None => "Nothing was measured on this machine.\n",
    };
    text
}
