//! Tools: what the model is told about them, and how its calls are parsed. Response formats: constraints on the text.

use super::messages::{ToolPrompt, call_text};
use crate::body::Fields;
use crate::grammar::MOST_CALLS;
use crate::model::ServedModel;
use crate::{ApiError, CallForm, GrammarError, OutputForm, ReasoningMode, ToolFormat, calls_schema};
use djinn_engine::Constraint;
use serde_json::{Value, json};
use std::sync::LazyLock;

/// The field for the answer's format.
const FORMAT: &str = "response_format";
/// The field for the use of tools.
const CHOICE: &str = "tool_choice";
const MOST_TOOLS: usize = 128;
/// The arguments of a function whose client names none: an empty object.
static NO_PARAMETERS: LazyLock<Value> =
    LazyLock::new(|| json!({ "type": "object", "properties": {}, "additionalProperties": false }));
/// The longest name of a function.
const LONGEST_NAME: usize = 64;

/// Who decides whether the answer calls a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    /// No calls.
    Never,
    Model,
    /// The client demands at least one call.
    Client,
    /// The client demands one call of a named function.
    Named,
}

pub(super) struct Tools {
    /// The list for the model.
    list: Vec<Value>,
    /// Names of those that may be called.
    functions: Vec<String>,
    decision: Decision,
    /// Whether the answer has at most one call.
    one_call: bool,
}

impl Tools {
    /// The tools that may be called; `None` if there are none.
    pub(super) fn read(fields: &Fields) -> Result<Option<Self>, ApiError> {
        let mut list = match fields.get("tools") {
            None => Vec::new(),
            Some(Value::Array(tools)) if tools.len() <= MOST_TOOLS => tools.clone(),
            Some(_) => {
                let message = format!("`tools` must be a list of up to {MOST_TOOLS} tools");
                return Err(ApiError::field("tools", message));
            }
        };
        let functions = list.iter().enumerate().map(|(at, tool)| function(at, tool));
        let mut functions: Vec<String> = functions.collect::<Result<_, _>>()?;
        let (decision, allowed) = choice(fields)?;
        if let Some(allowed) = allowed {
            if let Some(unknown) = allowed.iter().find(|name| !functions.contains(name)) {
                let message = format!("`tool_choice` names {unknown:?}, which is not in `tools`");
                return Err(ApiError::field(CHOICE, message));
            }
            functions = allowed;
            if decision == Decision::Model {
                // Only the prompt keeps the model from calling others.
                list.retain(|tool| name_of(tool).is_some_and(|name| functions.contains(&name)));
            }
        }
        let one_call = !fields.read("parallel_tool_calls")?.unwrap_or(true) || decision == Decision::Named;
        match decision {
            Decision::Client if functions.is_empty() => {
                Err(ApiError::field(CHOICE, "`tool_choice` demands a call; give `tools`"))
            }
            Decision::Never => Ok(None),
            _ if list.is_empty() => Ok(None),
            _ => Ok(Some(Tools { list, functions, decision, one_call })),
        }
    }

    /// Whether the answer must consist of calls.
    fn are_demanded(&self) -> bool {
        matches!(self.decision, Decision::Client | Decision::Named)
    }

    /// The functions that may be called, as the client gave them.
    fn offered(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.list.iter().filter_map(|tool| {
            let name = tool["function"]["name"].as_str()?;
            let is_offered = self.functions.iter().any(|offered| offered == name);
            is_offered.then_some((name, &tool["function"]))
        })
    }

    /// The schema of demanded calls.
    fn schema(&self) -> Value {
        let most = if self.one_call { 1 } else { MOST_CALLS };
        calls_schema(self.offered().map(|(name, function)| (name, parameters(function))), most)
    }

    /// The form of calls that the model may begin, if any must meet a schema: those of functions with `strict`, while
    /// arguments of others are any object. If the answer has a format, all calls meet their schemas.
    fn form(&self, model: &ServedModel, reasoning: ReasoningMode, formatted: bool) -> Option<CallForm> {
        let is_strict = |function: &Value| formatted || function["strict"] == true;
        if !self.offered().any(|(_, function)| is_strict(function)) {
            return None;
        }
        let functions = self.offered().map(|(name, function)| {
            let schema = if is_strict(function) { parameters(function).clone() } else { Value::Null };
            (name.to_owned(), schema)
        });
        let format = format_of(model).unwrap_or(ToolFormat::Hermes);
        let markers = model.markers(Some(format));
        Some(CallForm { format, functions: functions.collect(), markers, reasoning })
    }

    /// How the model is told about them.
    pub(super) fn prompt(&self, model: &ServedModel) -> ToolPrompt {
        match format_of(model) {
            Some(_) => ToolPrompt::ByTemplate(Value::Array(self.list.clone())),
            None => {
                let mut text = "You may call these functions, given as JSON:\n".to_owned();
                for tool in &self.list {
                    text += &format!("{tool}\n");
                }
                text += "To call one, answer with its name and arguments as JSON between tags:\n";
                text += &call_text("FUNCTION", &json!({}));
                ToolPrompt::BySystem(text)
            }
        }
    }
}

/// The schema of a function's arguments.
fn parameters(function: &Value) -> &Value {
    match &function["parameters"] {
        Value::Null => &NO_PARAMETERS,
        given => given,
    }
}

/// The format of calls that the model's template teaches.
fn format_of(model: &ServedModel) -> Option<ToolFormat> {
    let is_special = |name: &str| {
        let tokenizer = model.tokenizer();
        tokenizer.is_some_and(|tokenizer| tokenizer.token_id(name).is_some_and(|id| tokenizer.is_special(id)))
    };
    ToolFormat::detect(model.template()?.source(), is_special)
}

/// Whether the model's template drops the calls that messages have. One that reads `tool_calls` writes them itself, maybe in
/// a form that is not known here.
pub(super) fn loses_calls(model: &ServedModel) -> bool {
    let writes = model.template().is_some_and(|template| template.source().contains("tool_calls"));
    !writes && format_of(model).is_none()
}

/// The value of `tool_choice`: who decides, and the named functions, if any.
fn choice(fields: &Fields) -> Result<(Decision, Option<Vec<String>>), ApiError> {
    let wrong = |detail: &str| ApiError::field(CHOICE, format!("`tool_choice` {detail}"));
    let mode = |mode: &Value| match mode.as_str() {
        Some("auto") => Some(Decision::Model),
        Some("required") => Some(Decision::Client),
        _ => None,
    };
    let named = |tool: &Value| name_of(tool).ok_or_else(|| wrong("must name a function of `tools`"));
    let Some(choice) = fields.get(CHOICE) else { return Ok((Decision::Model, None)) };
    match choice["type"].as_str() {
        _ if *choice == "none" => Ok((Decision::Never, None)),
        Some("function") => Ok((Decision::Named, Some(vec![named(choice)?]))),
        Some("allowed_tools") => {
            let allowed = &choice["allowed_tools"];
            let tools = allowed["tools"].as_array().filter(|tools| !tools.is_empty());
            let tools = tools.ok_or_else(|| wrong("allows no tools; give `none`"))?;
            let mode =
                mode(&allowed["mode"]).ok_or_else(|| wrong("must have the `mode` auto or required"))?;
            Ok((mode, Some(tools.iter().map(named).collect::<Result<_, _>>()?)))
        }
        _ => match mode(choice) {
            Some(decision) => Ok((decision, None)),
            None => Err(wrong("must be none, auto, required, a function or allowed_tools")),
        },
    }
}

/// The name in a tool, or in a choice of one.
fn name_of(tool: &Value) -> Option<String> {
    tool["function"]["name"].as_str().map(str::to_owned)
}

/// Whether the client demands one function by name.
pub(super) fn names_a_function(fields: &Fields) -> bool {
    fields.get(CHOICE).is_some_and(|choice| choice["type"] == "function")
}

fn function(at: usize, tool: &Value) -> Result<String, ApiError> {
    let wrong = |field: &str, detail: &str| {
        let param = format!("tools[{at}]{field}");
        let message = format!("`{param}` {detail}");
        ApiError::field(param, message)
    };
    if tool["type"] != "function" {
        return Err(wrong(".type", "must be \"function\""));
    }
    let function = tool["function"].as_object().ok_or_else(|| wrong(".function", "must be an object"))?;
    let is_plain = |name: &&str| {
        (1..=LONGEST_NAME).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
    };
    let name = function.get("name").and_then(Value::as_str).filter(is_plain);
    let name =
        name.ok_or_else(|| wrong(".function.name", "must be 1 to 64 letters, digits, `_`, `-` or `.`"))?;
    match function.get("parameters") {
        None | Some(Value::Null | Value::Object(_)) => Ok(name.to_owned()),
        Some(_) => Err(wrong(".function.parameters", "must be a JSON schema")),
    }
}

/// How to parse an answer to `prompt`, the rendered conversation. An answer that consists of calls, or has a format,
/// has no reasoning.
pub(super) fn output(
    fields: &Fields,
    model: &ServedModel,
    tools: Option<&Tools>,
    prompt: &str,
) -> Result<OutputForm, ApiError> {
    let is_formed = tools.is_some_and(Tools::are_demanded) || format_schema(fields)?.is_some();
    let source = model.template().map(|template| template.source()).filter(|_| !is_formed);
    let reasoning = source.map_or(ReasoningMode::Off, |source| ReasoningMode::detect(source, prompt));
    let Some(tools) = tools else { return Ok(OutputForm { reasoning, ..OutputForm::default() }) };
    let format = format_of(model).unwrap_or(ToolFormat::Hermes);
    Ok(OutputForm {
        calls: Some(if tools.are_demanded() { ToolFormat::JsonList } else { format }),
        reasoning,
        functions: tools.functions.clone(),
        one_call: tools.one_call,
        // Mistral's templates refuse other ids in a continued conversation.
        short_ids: format == ToolFormat::Mistral,
    })
}

/// The constraint on the answer: demanded calls, or else the response format, or the schemas of calls that the model
/// begins. `None`: free text. It compiles a schema, so call it where a thread may block.
pub(super) fn constraint(
    fields: &Fields,
    model: &ServedModel,
    tools: Option<&Tools>,
    reasoning: ReasoningMode,
) -> Result<Option<Box<dyn Constraint>>, ApiError> {
    match (tools, format_schema(fields)?) {
        // A call leaves no text for a format.
        (Some(tools), _) if tools.are_demanded() => compile(model, &tools.schema(), "tools").map(Some),
        (None, None) => Ok(None),
        (None, Some(schema)) => compile(model, &schema, FORMAT).map(Some),
        (Some(tools), format) => {
            let Some(form) = tools.form(model, reasoning, format.is_some()) else { return Ok(None) };
            let made = model.grammars().and_then(|grammars| grammars.calls(&form, format.as_ref()));
            made.map(Some).map_err(|error| refusal(&error, if format.is_some() { FORMAT } else { "tools" }))
        }
    }
}

/// The schema of the response format; `None`: free text.
fn format_schema(fields: &Fields) -> Result<Option<Value>, ApiError> {
    let Some(format) = fields.get(FORMAT) else { return Ok(None) };
    let schema_at = |place: &str, schema: &Value| {
        let wrong = || ApiError::field(FORMAT, format!("`{FORMAT}.{place}` must be an object"));
        schema.is_object().then(|| Some(schema.clone())).ok_or_else(wrong)
    };
    match format["type"].as_str() {
        Some("text") => Ok(None),
        Some("json_object") if format["schema"].is_null() => Ok(Some(json!({ "type": "object" }))),
        // llama.cpp's field for the schema.
        Some("json_object") => schema_at("schema", &format["schema"]),
        Some("json_schema") => schema_at("json_schema.schema", &format["json_schema"]["schema"]),
        _ => {
            let message = "`response_format.type` must be text, json_object or json_schema";
            Err(ApiError::field(FORMAT, message))
        }
    }
}

/// The constraint of a schema from the field `param`.
fn compile(
    model: &ServedModel,
    schema: &Value,
    param: &'static str,
) -> Result<Box<dyn Constraint>, ApiError> {
    let made = model.grammars().and_then(|grammars| grammars.json_schema(schema));
    made.map_err(|error| refusal(&error, param))
}

fn refusal(error: &GrammarError, param: &'static str) -> ApiError {
    match error {
        GrammarError::Busy => ApiError::busy(error.to_string()),
        error => ApiError::of_text(error, param),
    }
}
