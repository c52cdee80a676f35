//! Identifies a model: keys and values of one are useless to another.

use djinn_models::Model;

/// A hash of the model's graph, and of its weights' names, shapes and first rows. It differs between models of equal
/// shapes that were trained separately or further.
///
/// # Errors
/// A weight that cannot be read.
pub(super) fn fingerprint(model: &Model) -> Result<String, djinn_vmu::SourceError> {
    /// Separates these hashes from others.
    const CONTEXT: &str = "djinn-server 2026-11 which model";
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    let mut graph = model.graph.clone();
    // Display names do not count.
    (graph.model, graph.hooks) = (String::new(), Vec::new());
    // Numbers are finite and keys are text: nothing here fails.
    hasher.update(&serde_json::to_vec(&graph).unwrap_or_default());
    for (_, weight) in graph.weights() {
        let mut row = vec![0; weight.stored_bytes(0..1) as usize];
        model.source.read_rows(&weight.name, 0..1, &mut row)?;
        hasher.update(&row);
    }
    Ok(hasher.finalize().to_hex().to_string())
}
