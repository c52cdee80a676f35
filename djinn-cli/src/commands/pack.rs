//! `djinn pack` and `djinn unpack`: checkpoints in fewer bytes.

use crate::args::PackArgs;
use crate::{loaded, output, size};
use anyhow::{Result, bail};
use djinn_host::Meter;
use djinn_models::packed::{self, PackReport};
use djinn_models::{Location, printable};
use std::num::NonZero;
use std::thread;

pub(super) fn pack(args: &PackArgs, quiet: bool) -> Result<()> {
    let location = loaded::find(&args.model, quiet)?;
    let meter = Meter::new(format!("packing {}", args.model), quiet);
    let report = packed::pack(&location, &args.output, threads(args), &mut |done, total| {
        meter.set(done, Some(total))
    })?;
    meter.finish(report.original_bytes);
    show(args, &report, quiet)
}

/// Restores the files of a packed directory.
pub(super) fn unpack(args: &PackArgs, quiet: bool) -> Result<()> {
    let Location::Directory(directory) = loaded::find(&args.model, quiet)? else {
        bail!("{} is no directory; djinn unpack takes the one that djinn pack wrote", args.model);
    };
    let meter = Meter::new(format!("unpacking {}", args.model), quiet);
    let report = packed::unpack(&directory, &args.output, threads(args), &mut |done, total| {
        meter.set(done, Some(total))
    })?;
    meter.finish(report.original_bytes);
    show(args, &report, quiet)
}

fn threads(args: &PackArgs) -> usize {
    let machine = || thread::available_parallelism().map_or(1, NonZero::get);
    args.threads.map_or_else(machine, |threads| threads as usize)
}

fn show(args: &PackArgs, report: &PackReport, quiet: bool) -> Result<()> {
    if args.json {
        return output::json(report);
    }
    if !quiet && !report.left_out.is_empty() {
        output::remark(&format!("not copied: {}", printable::one_line(&report.left_out.join(", "))));
    }
    let share = match report.original_bytes {
        0 => 1.0,
        bytes => report.packed_bytes as f64 / bytes as f64,
    };
    output::line(&format!(
        "{}: {} as safetensors, {} packed ({share:.3}), of it {} in 12 bits a value",
        printable::one_line(&args.model),
        size::human(report.original_bytes),
        size::human(report.packed_bytes),
        size::human(report.lossless_bytes),
    ))
}
