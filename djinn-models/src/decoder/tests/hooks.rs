//! Every hook of every family: TransformerLens' names, old and new, aliases, and the modules of the family's checkpoints.

use crate::{Location, OpenOptions, open};

/// A family's modules in transformers, with one block.
struct Modules {
    shape: &'static str,
    /// The block, and what is outside of it.
    block: &'static str,
    embedding: &'static str,
    positions: Option<&'static str>,
    /// Whether queries and keys are rotated.
    rotates: bool,
    final_norm: &'static str,
    head: &'static str,
    /// Within the block: the norm before attention, attention, its last product.
    attention: [&'static str; 3],
    /// The norm before the MLP, where there is one, and what it reads.
    second_norm: Option<(&'static str, Reads)>,
    mlp: Mlp,
}

/// What the second norm reads.
#[derive(Clone, Copy, PartialEq)]
enum Reads {
    /// The residual stream after attention: blocks in sequence.
    Middle,
    /// What the block reads: attention and MLP side by side.
    Block,
}

enum Mlp {
    /// A gate and `down`.
    Gated([&'static str; 2]),
    /// `up`, whose output is seen before the GELU, and `down`.
    Plain([&'static str; 3]),
    /// A router and experts.
    Experts(&'static str),
}

const LLAMA: Modules = Modules {
    shape: "tiny",
    block: "model.layers.0",
    embedding: "model.embed_tokens",
    positions: None,
    rotates: true,
    final_norm: "model.norm",
    head: "lm_head",
    attention: ["input_layernorm", "self_attn", "self_attn.o_proj"],
    second_norm: Some(("post_attention_layernorm", Reads::Middle)),
    mlp: Mlp::Gated(["mlp", "mlp.down_proj"]),
};

const GPT2: Modules = Modules {
    shape: "tiny-gpt2",
    block: "transformer.h.0",
    embedding: "transformer.wte",
    positions: Some("transformer.wpe"),
    rotates: false,
    final_norm: "transformer.ln_f",
    head: "lm_head",
    attention: ["ln_1", "attn", "attn.c_proj"],
    second_norm: Some(("ln_2", Reads::Middle)),
    mlp: Mlp::Plain(["mlp", "mlp.c_fc", "mlp.c_proj"]),
};

const FALCON: Modules = Modules {
    shape: "falcon-7b",
    block: "transformer.h.0",
    embedding: "transformer.word_embeddings",
    positions: None,
    rotates: true,
    final_norm: "transformer.ln_f",
    head: "lm_head",
    attention: ["input_layernorm", "self_attention", "self_attention.dense"],
    second_norm: None,
    mlp: Mlp::Plain(["mlp", "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"]),
};

const FAMILIES: [Modules; 12] = [
    LLAMA,
    Modules { shape: "tiny-window", ..LLAMA },
    Modules { shape: "qwen2.5-7b", ..LLAMA },
    Modules { shape: "tiny-qwen3", ..LLAMA },
    Modules { shape: "tiny-mixtral", mlp: Mlp::Experts("block_sparse_moe"), ..LLAMA },
    Modules { shape: "tiny-qwen3-moe", mlp: Mlp::Experts("mlp"), ..LLAMA },
    GPT2,
    Modules {
        shape: "tiny-gptj",
        positions: None,
        rotates: true,
        attention: ["ln_1", "attn", "attn.out_proj"],
        second_norm: None,
        mlp: Mlp::Plain(["mlp", "mlp.fc_in", "mlp.fc_out"]),
        ..GPT2
    },
    Modules {
        shape: "tiny-gpt-neox",
        block: "gpt_neox.layers.0",
        embedding: "gpt_neox.embed_in",
        final_norm: "gpt_neox.final_layer_norm",
        head: "embed_out",
        attention: ["input_layernorm", "attention", "attention.dense"],
        second_norm: Some(("post_attention_layernorm", Reads::Block)),
        ..FALCON
    },
    FALCON,
    Modules {
        shape: "tiny-falcon",
        attention: ["ln_attn", "self_attention", "self_attention.dense"],
        second_norm: Some(("ln_mlp", Reads::Block)),
        ..FALCON
    },
    Modules {
        shape: "tiny-falcon-rw",
        rotates: false,
        second_norm: Some(("post_attention_layernorm", Reads::Middle)),
        ..FALCON
    },
];

impl Modules {
    /// Each hook with the value that it names, in the order of computation.
    fn hooks(&self) -> Vec<(String, String)> {
        let mut hooks = Vec::new();
        let mut add = |value: &str, names: &[&str], modules: &[&str]| {
            let in_block = value.starts_with("blocks.") || names.contains(&"hook_in");
            let (names_at, modules_at) = match in_block {
                true => ("blocks.0.".to_owned(), format!("{}.", self.block)),
                false => Default::default(),
            };
            let names = names.iter().map(|name| format!("{names_at}{name}"));
            let all = names.chain(modules.iter().map(|module| format!("{modules_at}{module}")));
            hooks.extend(all.map(|name| (name, value.to_owned())));
        };
        add("embed.out", &["embed.hook_out", "hook_embed"], &[self.embedding]);
        let mut read = "embed.out";
        if let Some(module) = self.positions {
            add("pos_embed.out", &["pos_embed.hook_out", "hook_pos_embed"], &[module]);
            read = "embed.add.out";
        }
        add(read, &["hook_in", "hook_resid_pre", "pre_attn"], &[]);
        let [norm, attention, product] = self.attention;
        add("blocks.0.ln1.out", &["ln1.hook_out", "attn.hook_in"], &[norm]);
        let names = [
            "attn.q.hook_out",
            "attn.hook_q",
            "attn.k.hook_out",
            "attn.hook_k",
            "attn.v.hook_out",
            "attn.hook_v",
        ];
        add("blocks.0.attn.qkv.out", &names, &[]);
        if self.rotates {
            add("blocks.0.attn.qkv.out", &["attn.hook_rot_q", "attn.hook_rot_k"], &[]);
        }
        add("blocks.0.attn.out", &["attn.o.hook_in", "attn.hook_z"], &[]);
        let names = ["attn.hook_out", "attn.o.hook_out", "hook_attn_out"];
        add("blocks.0.attn.out.out", &names, &[product, attention]);
        let mut mlp_reads = "blocks.0.ln1.out";
        if let Some((norm, reads)) = self.second_norm {
            if reads == Reads::Middle {
                add("blocks.0.attn.add.out", &["hook_resid_mid", "post_attn"], &[]);
            }
            mlp_reads = "blocks.0.ln2.out";
            add(mlp_reads, &["ln2.hook_out"], &[norm]);
        }
        add(mlp_reads, &["mlp.hook_in"], &[]);
        let names = ["mlp.hook_out", "hook_mlp_out"];
        match self.mlp {
            Mlp::Experts(module) => add("blocks.0.mlp.combine.out", &names, &[module]),
            Mlp::Gated([module, down]) => {
                add("blocks.0.mlp.act.out", &["mlp.hook_post"], &[]);
                add("blocks.0.mlp.down.out", &names, &[down, module]);
            }
            Mlp::Plain([module, up, down]) => {
                add("blocks.0.mlp.up.out", &["mlp.hook_pre"], &[up]);
                add("blocks.0.mlp.act.out", &["mlp.hook_post"], &[]);
                add("blocks.0.mlp.down.out", &names, &[down, module]);
            }
        }
        add("blocks.0.mlp.add.out", &["hook_out", "hook_resid_post", "post_block"], &[]);
        hooks.push((self.block.to_owned(), "blocks.0.mlp.add.out".to_owned()));
        let mut add = |value: &str, names: &[&str]| {
            hooks.extend(names.iter().map(|name| ((*name).to_owned(), value.to_owned())));
        };
        let names = ["ln_final.hook_out", "unembed.hook_in", self.final_norm];
        add("ln_final.out", &names);
        add("unembed.out", &["unembed.hook_out", self.head]);
        hooks
    }
}

#[test]
fn every_hook_of_every_family_names_its_value() {
    for family in FAMILIES {
        let place = Location::Synthetic(format!("{}?layers=1", family.shape));
        let graph = open(&place, &OpenOptions::default()).expect(family.shape).graph;
        let found = graph.hooks.iter().map(|hook| (hook.name.clone(), graph.value(hook.value).name.clone()));
        let found: Vec<_> = found.collect();
        assert_eq!(found, family.hooks(), "{}", family.shape);
        for (name, value) in &found {
            let id = graph.hook(name).expect("it is found by its name").value;
            assert_eq!(&graph.value(id).name, value, "{}: {name}", family.shape);
        }
    }
}

/// What a value is, and not just what it is called: the operations that write the values of the names that
/// TransformerLens users know.
#[test]
fn the_residual_stream_and_its_parts_are_what_their_names_say() {
    for family in FAMILIES {
        let place = Location::Synthetic(format!("{}?layers=2", family.shape));
        let graph = open(&place, &OpenOptions::default()).expect(family.shape).graph;
        let id = |name: &str| graph.hook(name).unwrap_or_else(|| panic!("{}: no {name}", family.shape)).value;
        let writer = |name: &str| {
            let id = id(name);
            graph.nodes.iter().find(|node| node.outputs.contains(&id)).expect("a node writes it")
        };
        assert_eq!(writer("hook_embed").op.name(), "embed");
        assert_eq!(id("blocks.0.hook_resid_post"), id("blocks.1.hook_resid_pre"), "{}", family.shape);
        // The stream after the block is what was there and what the MLP adds.
        let post = writer("blocks.1.hook_resid_post");
        assert_eq!((post.op.name(), post.inputs[1]), ("add", id("blocks.1.hook_mlp_out")));
        let sequential = matches!(family.second_norm, Some((_, Reads::Middle)));
        assert_eq!(graph.hook("blocks.1.hook_resid_mid").is_some(), sequential, "{}", family.shape);
        let middle = graph.nodes.iter().find(|node| node.outputs == [post.inputs[0]]).expect("a sum");
        assert_eq!(middle.op.name(), "add");
        assert_eq!(middle.inputs, [id("blocks.1.hook_resid_pre"), id("blocks.1.hook_attn_out")]);
        // The heads' values before the output product, and what the logits are made of.
        assert_eq!(writer("blocks.1.attn.hook_z").op.name(), "attention");
        assert_eq!(writer("blocks.1.hook_attn_out").inputs, [id("blocks.1.attn.hook_z")]);
        assert_eq!(writer("unembed.hook_out").inputs, [id("ln_final.hook_out")]);
        assert_eq!(graph.logits, id("unembed.hook_out"));
    }
}
