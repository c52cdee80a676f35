//! Experiment 3 as Markdown.

use super::{Column, circumstances, number, table};
use crate::document::Document;
use crate::exp3::{Exp3, Kind, Resumed, Strength};
use crate::size::human;

/// Sessions that stopped, what stops cost others, and what steering does.
pub(crate) fn exp3(document: &Document<Exp3>) -> String {
    let body = &document.body;
    let mut text = circumstances(document);
    text += &format!(
        "\n{} on {}: {} sessions of {} tokens that stop at `{}`; weights and all keys and values are {}, and the \
         device may hold {}.\n",
        body.model,
        body.device,
        body.sessions,
        body.context,
        body.hook,
        human(body.demand_bytes()),
        human(body.vram_bytes)
    );
    if let Some(written) = &body.written {
        text += &format!(
            "\nWhat was read at all {} hooks of one token was written back in one step: {} of {} tokens and their \
             log-probabilities are the same, to the bit.\n",
            written.hooks, written.equal_tokens, written.tokens
        );
    }
    if let Some(paused) = &body.paused {
        text += &format!(
            "\n{} of {} stopped at once, {} of them with their pages on the host, {} without pages. All went on: {} of {} \
             tokens equal those of a run without stops. Stopping all took {:.1} s, the rest of their turns {:.1} s. \
             Copies out {} GB/s, in {} GB/s (medians of {} and {}).\n\n",
            paused.stopped,
            body.sessions,
            paused.on_host,
            paused.given_up,
            paused.equal_tokens,
            paused.tokens,
            paused.stop_all_s,
            paused.resume_all_s,
            number(paused.out_gbps, 1),
            number(paused.in_gbps, 1),
            paused.copies[0],
            paused.copies[1]
        );
        let rows = [("pages on the device", &paused.resident), ("pages on the host", &paused.parked)];
        let columns: [Column<'_, (&str, &Resumed)>; 5] = [
            ("one session goes on", &|(name, _)| (*name).to_owned()),
            ("sessions", &|(_, resumed)| resumed.sessions.to_string()),
            ("next token after ms", &|(_, resumed)| number(resumed.first_token_ms, 2)),
            ("ms/token then", &|(_, resumed)| number(resumed.token_ms, 2)),
            ("restore ms", &|(_, resumed)| number(resumed.restore_ms, 2)),
        ];
        text += &table(1, rows, &columns);
    }
    if let Some(cost) = &body.cost {
        text += &format!("\nSteps of {} sessions, seen by one without a breakpoint:\n\n", cost.batch);
        let plain = cost.kinds[0].step_ms;
        let columns: [Column<'_, &Kind>; 4] = [
            ("", &|kind| kind.name.clone()),
            ("steps", &|kind| kind.samples_ms.len().to_string()),
            ("ms/step", &|kind| number(Some(kind.step_ms), 3)),
            ("more ms", &|kind| number(Some(kind.step_ms - plain), 3)),
        ];
        text += &table(1, &cost.kinds, &columns);
    }
    text += "\nA vector of random signs added at the hook, its length as a share of the activation's:\n\n";
    let columns: [Column<'_, &Strength>; 3] = [
        ("strength", &|one| format!("{}", one.strength)),
        ("logits move by", &|one| format!("{:.4}", one.logits_change)),
        ("changed tokens", &|one| format!("{} of {}", one.changed_tokens, one.tokens)),
    ];
    text + &table(0, &body.steering, &columns)
}
