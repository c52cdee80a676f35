//! A snapshot of everything, as JSON.

use crate::model::ServedModel;
use crate::openai::models;
use crate::reply::unix_now;
use crate::request::Pairs;
use crate::server::Server;
use crate::sessions::{EngineReport, residency_name, session_body};
use djinn_engine::{Client, SessionId, SessionSnapshot, Snapshot, StepCounts};
use djinn_host::Generation;
use djinn_models::GenerationDefaults;
use djinn_vmu::{Moved, Segments};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The most sessions of a model that are listed. Computing ones and those opened last go first.
const MOST_SESSIONS: usize = 256;
/// Parts of the map of pages.
const CELLS: u32 = 512;
/// In the map of pages: free, and held by a session that is not listed.
const FREE: i32 = -1;
const OTHER: i32 = -2;

/// The models that a query selects, as a tenant sees them.
pub(super) async fn of(server: &Server, tenant: &[u8], has_keys: bool, query: &Pairs) -> Value {
    let mut models = Vec::new();
    for (name, model) in server.asked_models(query) {
        models.push(of_model(&name, &model, tenant, has_keys).await);
    }
    let mut server_told = server.metrics.told();
    server_told["most_requests"] = json!(server.limits.requests);
    server_told["served"] = json!(server.limits.requests.saturating_sub(server.permits.available_permits()));
    json!({
        "object": "live",
        "version": env!("CARGO_PKG_VERSION"),
        "time": unix_now(),
        "server": server_told,
        "models": models,
    })
}

async fn of_model(name: &str, model: &Arc<ServedModel>, tenant: &[u8], has_keys: bool) -> Value {
    let snapshot = model.snapshot().await;
    let mut told = model.metrics.told();
    told["id"] = json!(name);
    told["name"] = json!(model.name());
    told["context"] = json!(model.context());
    told["layers"] =
        json!((0..).take_while(|n| model.graph().hook(&format!("blocks.{n}.hook_out")).is_some()).count());
    told["chats"] = json!(model.template().is_some());
    told["chat_defaults"] = chat_defaults(model.defaults());
    told["up"] = json!(model.is_ready());
    told["status"] = models::status(model);
    let loads = model.loads();
    told["loads"] = json!({
        "count": loads.count,
        "bytes": loads.bytes,
        "ms": ms(loads.time),
        "latest_bytes": loads.latest.0,
        "latest_ms": ms(loads.latest.1),
    });
    told["named_sessions"] = json!(model.sessions.len());
    let Some(snapshot) = snapshot else { return told };
    let occupancy = &snapshot.occupancy;
    let listed = Listed::new(name, model, &snapshot, tenant, has_keys);
    let (cell_pages, cells) = cells(occupancy.device_pages, &snapshot.sessions, &listed.places);
    let weights = &snapshot.weights;
    told["segments"] = segments(&snapshot.segments);
    told["host"] = json!({
        "weights": snapshot.host_weight_bytes,
        "pages": u64::from(occupancy.host_pages) * snapshot.page_bytes,
    });
    told["weights"] = json!({
        "resident": weights.resident,
        "streamed_bytes": weights.streamed_bytes,
        "ring_chunks": weights.ring_chunks,
        "ring_ahead": weights.ring_ahead,
    });
    told["queue"] = json!({
        "running": occupancy.running,
        "waiting": occupancy.waiting,
        "parked": occupancy.parked,
    });
    told["pages"] = json!({
        "bytes": snapshot.page_bytes,
        "tokens": snapshot.page_tokens,
        "device": occupancy.device_pages,
        "device_free": occupancy.device_free,
        "device_cached": snapshot.cached_pages,
        "host": occupancy.host_pages,
        "host_free": occupancy.host_free,
        "cell_pages": cell_pages,
        "cells": cells,
    });
    told["steps"] = steps(&snapshot.steps);
    told["swaps"] = json!({ "out": moved(&snapshot.swaps.out), "in": moved(&snapshot.swaps.back) });
    let trace = snapshot.trace.map(|trace| json!({ "running": trace.running, "age_ms": ms(trace.age) }));
    told["trace"] = json!(trace);
    told["sessions"] = json!(listed.rows);
    told["sessions_not_listed"] = json!(listed.left_out);
    told
}

/// How a chat's answers are generated where neither the user nor the model's makers say; null leaves it to the makers.
fn chat_defaults(makers: &GenerationDefaults) -> Value {
    let Generation { temperature, top_p, min_p, repetition_penalty, .. } =
        Generation::default().for_chat(makers);
    json!({ "temperature": temperature, "top_p": top_p, "min_p": min_p, "repetition_penalty": repetition_penalty })
}

fn segments(segments: &Segments) -> Value {
    let Segments { resident, ring, bounce, data, stack, check, flags, reserved } = *segments;
    json!({
        "resident": resident, "ring": ring, "data": data, "stack": stack,
        "other": bounce + check + flags + reserved, "total": segments.total(),
    })
}

fn steps(steps: &StepCounts) -> Value {
    let StepCounts { times, tokens, streamed, under_way } = steps;
    json!({
        "count": times.steps,
        "tokens": tokens,
        "busy_ms": ms(times.busy),
        "idle_ms": ms(times.idle),
        "copy_ms": ms(streamed.copy),
        "stall_ms": ms(streamed.stall),
        "stalls": streamed.stalls,
        "streamed_bytes": streamed.streamed_bytes,
        "under_way_ms": under_way.map(ms),
    })
}

fn moved(moved: &Moved) -> Value {
    json!({ "pages": moved.pages, "bytes": moved.bytes, "busy_ms": ms(moved.busy) })
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The sessions that a tenant sees.
struct Listed {
    rows: Vec<Value>,
    /// The index of each session of the engine in the rows.
    places: BTreeMap<SessionId, i32>,
    left_out: usize,
}

impl Listed {
    fn new(
        model_name: &str,
        model: &ServedModel,
        snapshot: &Snapshot,
        tenant: &[u8],
        has_keys: bool,
    ) -> Self {
        let client = model.client().ok();
        let is_live = |other: &Client| client.as_ref().is_some_and(|client| client.is_same(other));
        let mut names = BTreeMap::new();
        let mut empty = Vec::new();
        for (id, record) in model.sessions.of_tenant(tenant) {
            match record.engine.as_ref().filter(|engine| is_live(&engine.client)).map(|engine| engine.id) {
                Some(engine) => drop(names.insert(engine, (id, record))),
                None => empty.push((id, record)),
            }
        }
        // Without keys, all sessions are visible.
        let visible = |session: &&SessionSnapshot| !has_keys || names.contains_key(&session.id);
        let mut seen: Vec<&SessionSnapshot> = snapshot.sessions.iter().filter(visible).collect();
        seen.sort_by_key(|session| (!session.report.phase.is_ready(), std::cmp::Reverse(session.id)));
        let left_out = snapshot.sessions.len() - seen.len().min(MOST_SESSIONS);
        seen.truncate(MOST_SESSIONS);
        seen.sort_by_key(|session| session.id);
        let places = (0..).zip(&seen).map(|(place, session)| (session.id, place)).collect();
        let mut rows: Vec<Value> = Vec::new();
        for session in seen {
            let SessionSnapshot { id, report, paused_at, .. } = session;
            let mut row = match names.remove(id) {
                Some((name, record)) => {
                    let told = EngineReport { report: report.clone(), paused_at: paused_at.clone() };
                    session_body(&name, model_name, &record, Some(told))
                }
                None => json!({
                    "id": null,
                    "state": if report.phase.is_ready() { "running" } else { "waiting" },
                    "phase": report.phase,
                    "tokens": report.tokens,
                    "computed_tokens": report.computed,
                    "kv_bytes": report.kv_bytes,
                    "residency": residency_name(report.residency),
                }),
            };
            row["number"] = json!(id.0);
            row["device_pages"] = json!(session.device_pages.len());
            row["host_pages"] = json!(session.host_pages);
            rows.push(row);
        }
        let room = MOST_SESSIONS - rows.len();
        rows.extend(empty.iter().take(room).map(|(id, record)| session_body(id, model_name, record, None)));
        Listed { rows, places, left_out }
    }
}

/// The device's pages in order, in parts of equal size: that size, and for each part the index of the session that
/// holds most of it.
fn cells(pages: u32, sessions: &[SessionSnapshot], places: &BTreeMap<SessionId, i32>) -> (u32, Vec<i32>) {
    let mut owners = vec![FREE; pages as usize];
    for session in sessions {
        let place = places.get(&session.id).copied().unwrap_or(OTHER);
        for &page in &session.device_pages {
            if let Some(owner) = owners.get_mut(page as usize) {
                *owner = place;
            }
        }
    }
    let cell_pages = pages.div_ceil(CELLS).max(1);
    let most = |part: &[i32]| {
        let mut counts = BTreeMap::<i32, usize>::new();
        part.iter().for_each(|&owner| *counts.entry(owner).or_default() += 1);
        counts.into_iter().max_by_key(|&(_, count)| count).map_or(FREE, |(owner, _)| owner)
    };
    (cell_pages, owners.chunks(cell_pages as usize).map(most).collect())
}
