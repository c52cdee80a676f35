//! Tools: what the model is told of them, and what is read out of its text. Response formats: what it must obey.

use super::messages::Told;
use crate::body::Fields;
use crate::model::ServedModel;
use crate::{ApiError, GrammarError, OutputForm, ReasoningMode, ToolFormat};
use djinn_engine::Constraint;
use serde_json::{Value, json};

/// The most tools of a request.
const MOST_TOOLS: usize = 128;
/// The longest name of a function.
const LONGEST_NAME: usize = 64;

/// A request's tools.
pub(super) struct Tools {
    /// The list as it came.
    list: Value,
    /// Their names.
    functions: Vec<String>,
}

impl Tools {
    /// The tools that may be called; none where there are none, or none is to be called.
    pub(super) fn read(fields: &Fields) -> Result<Option<Self>, ApiError> {
        let list = match fields.get("tools") {
            None => Vec::new(),
            Some(Value::Array(tools)) if tools.len() <= MOST_TOOLS => tools.clone(),
            Some(_) => {
                let message = format!("`tools` must be a list of up to {MOST_TOOLS} tools");
                return Err(ApiError::field("tools", message));
            }
        };
        let functions = list.iter().enumerate().map(|(at, tool)| function(at, tool));
        let functions: Vec<String> = functions.collect::<Result<_, _>>()?;
        // The table of fields leaves `auto` and `none`.
        let may_call = fields.get("tool_choice").is_none_or(|choice| choice != "none");
        Ok((may_call && !list.is_empty()).then_some(Tools { list: Value::Array(list), functions }))
    }

    /// How the model is told of them.
    pub(super) fn told(&self, model: &ServedModel) -> Told {
        match self.format(model) {
            Some(_) => Told::ByTemplate(self.list.clone()),
            None => {
                let mut text = "You may call these functions, given as JSON:\n".to_owned();
                for tool in self.list.as_array().into_iter().flatten() {
                    text += &format!("{tool}\n");
                }
                text += "To call one, answer with its name and arguments as JSON between tags:\n\
                         <tool_call>{\"name\": \"FUNCTION\", \"arguments\": {}}</tool_call>";
                Told::BySystem(text)
            }
        }
    }

    /// The form of calls that the model's template teaches.
    fn format(&self, model: &ServedModel) -> Option<ToolFormat> {
        let is_special = |name: &str| {
            let tokenizer = model.tokenizer();
            tokenizer
                .is_some_and(|tokenizer| tokenizer.token_id(name).is_some_and(|id| tokenizer.is_special(id)))
        };
        ToolFormat::detect(model.template()?.source(), is_special)
    }
}

/// The name of a tool's function.
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

/// What is read out of an answer to `prompt`, the rendered conversation.
pub(super) fn output(model: &ServedModel, tools: Option<&Tools>, prompt: &str) -> OutputForm {
    let source = model.template().map(|template| template.source());
    OutputForm {
        calls: tools.map(|tools| tools.format(model).unwrap_or(ToolFormat::Hermes)),
        reasoning: source.map_or(ReasoningMode::Off, |source| ReasoningMode::detect(source, prompt)),
        functions: tools.map_or_else(Vec::new, |tools| tools.functions.clone()),
    }
}

const FORMAT: &str = "response_format";

/// The schema at a place of the response format.
fn schema_at<'a>(place: &str, schema: &'a Value) -> Result<&'a Value, ApiError> {
    let wrong = || ApiError::field(FORMAT, format!("`{FORMAT}.{place}` must be an object"));
    schema.is_object().then_some(schema).ok_or_else(wrong)
}

/// What the answer must obey; `None` for a text. Compiles a schema: call it where a thread may block.
pub(super) fn constraint(
    fields: &Fields,
    model: &ServedModel,
    tools: Option<&Tools>,
) -> Result<Option<Box<dyn Constraint>>, ApiError> {
    let Some(format) = fields.get(FORMAT) else { return Ok(None) };
    let object = json!({ "type": "object" });
    let schema = match format["type"].as_str() {
        Some("text") => return Ok(None),
        Some("json_object") if format["schema"].is_null() => &object,
        // llama.cpp's way to give a schema.
        Some("json_object") => schema_at("schema", &format["schema"])?,
        Some("json_schema") => schema_at("json_schema.schema", &format["json_schema"]["schema"])?,
        _ => {
            let message = "`response_format.type` must be text, json_object or json_schema";
            return Err(ApiError::field(FORMAT, message));
        }
    };
    if tools.is_some() {
        let message =
            "an answer that must be JSON calls no tools; leave out `tools`, or give `tool_choice` as `none`";
        return Err(ApiError::unsupported(FORMAT, message));
    }
    let made = model.grammars().and_then(|grammars| grammars.json_schema(schema));
    made.map(Some).map_err(|error| match error {
        GrammarError::Busy => ApiError::busy(error.to_string()),
        error => ApiError::of_text(&error, FORMAT),
    })
}
