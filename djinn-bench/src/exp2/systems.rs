//! The systems of experiment 2: Djinn whole, without one mechanism each, and its peers.

#[cfg(test)]
mod tests;

use djinn_engine::Budget;

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// Djinn, with its budget changed.
    Own(fn(&mut Budget)),
    /// A script of the crate's folder `peers`.
    Peer(&'static str),
}

/// One row of the experiment.
#[derive(Clone, Copy)]
pub(crate) struct System {
    /// As on the command line and in results; in capitals if it is Djinn.
    pub(crate) name: &'static str,
    /// What it is, for people.
    pub(crate) title: &'static str,
    pub(crate) kind: Kind,
    /// Whether the cap on device memory holds for it.
    pub(crate) capped: bool,
    /// For ablations: what the mechanism that is missing does, in one sentence.
    pub(crate) why: Option<&'static str>,
}

impl System {
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.kind, Kind::Own(_))
    }
}

impl std::fmt::Debug for System {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

const fn own(name: &'static str, title: &'static str, change: fn(&mut Budget)) -> System {
    System { name, title, kind: Kind::Own(change), capped: true, why: None }
}

const fn ablation(
    name: &'static str,
    title: &'static str,
    change: fn(&mut Budget),
    why: &'static str,
) -> System {
    System { name, title, kind: Kind::Own(change), capped: true, why: Some(why) }
}

const fn peer(name: &'static str, title: &'static str, script: &'static str) -> System {
    System { name, title, kind: Kind::Peer(script), capped: true, why: None }
}

fn blocking(budget: &mut Budget) {
    budget.blocking_copies = true;
}

fn straddling(budget: &mut Budget) {
    budget.straddle = true;
}

fn all_streamed(budget: &mut Budget) {
    budget.resident_fraction = Some(0.0);
}

fn baseline(budget: &mut Budget) {
    blocking(budget);
    straddling(budget);
    all_streamed(budget);
}

/// Djinn as it is: what ablations are compared with.
pub(crate) const FULL: &str = "FULL";

/// Djinn with a `--cpu-share`.
pub(crate) const CPU_BESIDE: &str = "CPU_BESIDE";

/// All systems, in the order in which they run.
pub(crate) const SYSTEMS: &[System] = &[
    own(FULL, "Djinn", |_| {}),
    own(CPU_BESIDE, "Djinn, the CPU computes beside the link", |_| {}),
    ablation(
        "NO_PIPELINING",
        "Djinn, blocking copies",
        blocking,
        "Copies run ahead of their use, beside the computation; without that every chunk's copy begins when it is \
         needed, and a token pays for copies and computation one after the other.",
    ),
    ablation(
        "NO_SKIP_END",
        "Djinn, chunks may straddle the ring's end",
        straddling,
        "A chunk that never straddles the wrap is one copy and one contiguous operand, at the price of the few bytes \
         that the ring skips; one that straddles takes two copies, and a buffer to join it in that could hold weights.",
    ),
    ablation(
        "NO_FRACTIONAL",
        "Djinn, everything streamed",
        all_streamed,
        "What the budget leaves beside the ring holds weights that need not cross the link; without that every \
         token pays for all of them.",
    ),
    ablation(
        "BASELINE",
        "Djinn, none of these",
        baseline,
        "None of the three: what the mechanisms give together.",
    ),
    peer("accelerate", "HF Accelerate, device_map", "accelerate_offload.py"),
    peer("blocking", "PyTorch, blocking whole-block copies", "blocking.py"),
    peer("three-slot", "PyTorch, three whole-block slots, two streams", "three_slot.py"),
    peer("deepspeed", "DeepSpeed, ZeRO-Inference", "deepspeed_offload.py"),
    System { capped: false, ..own("RESIDENT", "Djinn, all resident", |_| {}) },
    System { capped: false, ..peer("eager", "PyTorch, all resident", "resident.py") },
];

/// Systems that one word of the command line stands for.
#[derive(Clone, Debug)]
pub(crate) struct Choice(pub(crate) Vec<&'static System>);

/// Finds a system by its name; case, `-` and `_` do not count.
pub(crate) fn find(name: &str) -> Option<&'static System> {
    let plain = |name: &str| name.to_lowercase().replace('_', "-");
    SYSTEMS.iter().find(|system| plain(system.name) == plain(name))
}

/// What a word of `--systems` stands for.
pub(crate) fn parse(word: &str) -> Result<Choice, String> {
    let of = |keep: fn(&System) -> bool| Choice(SYSTEMS.iter().filter(|s| keep(s)).collect());
    match word {
        "all" => Ok(of(|_| true)),
        "own" => Ok(of(System::is_own)),
        "peers" => Ok(of(|s| !s.is_own())),
        _ => find(word).map(|system| Choice(vec![system])).ok_or_else(|| {
            let known: Vec<&str> = SYSTEMS.iter().map(|s| s.name).collect();
            format!("not known; known are own, peers, all, {}", known.join(", "))
        }),
    }
}

/// Finds one of Djinn's own systems.
pub(crate) fn parse_own(name: &str) -> Result<&'static System, String> {
    find(name).filter(|s| s.is_own()).ok_or_else(|| format!("{name} is no system of Djinn's own"))
}
