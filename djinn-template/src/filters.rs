//! Jinja's filters, by name.

mod numbers;
mod sequences;
mod texts;

pub(crate) use sequences::sorted;
pub(crate) use texts::{escape, spaces};

use crate::arguments::{Builtin, Given};
use crate::error::Eval;
use crate::methods::strings;
use crate::render::Renderer;
use crate::value::{Value, truth};

pub(crate) static FILTERS: &[Builtin] = &[
    Builtin("abs", "", numbers::abs),
    Builtin("attr", "name", sequences::attr),
    Builtin("batch", "linecount fill_with", sequences::batch),
    Builtin("capitalize", "", strings::case),
    Builtin("center", "width", texts::center),
    Builtin("count", "", sequences::length),
    Builtin("d", "default_value boolean", default),
    Builtin("default", "default_value boolean", default),
    Builtin("dictsort", "case_sensitive by reverse", sequences::dictsort),
    Builtin("e", "", texts::escape_filter),
    Builtin("escape", "", texts::escape_filter),
    Builtin("first", "", sequences::first),
    Builtin("float", "default", numbers::float),
    Builtin("forceescape", "", texts::escape_filter),
    Builtin("format", "*", texts::format),
    Builtin("groupby", "attribute default case_sensitive", sequences::groupby),
    Builtin("indent", "width first blank", texts::indent),
    Builtin("int", "default base", numbers::int),
    Builtin("items", "", sequences::items),
    Builtin("join", "d attribute", texts::join),
    Builtin("last", "", sequences::last),
    Builtin("length", "", sequences::length),
    Builtin("list", "", sequences::list),
    Builtin("lower", "", strings::case),
    Builtin("map", "*", sequences::map),
    Builtin("max", "case_sensitive attribute", sequences::extreme),
    Builtin("min", "case_sensitive attribute", sequences::extreme),
    Builtin("reject", "*", sequences::select),
    Builtin("rejectattr", "*", sequences::select),
    Builtin("replace", "old new count", texts::replace),
    Builtin("reverse", "", sequences::reverse),
    Builtin("round", "precision method", numbers::round),
    Builtin("safe", "", texts::safe),
    Builtin("select", "*", sequences::select),
    Builtin("selectattr", "*", sequences::select),
    Builtin("slice", "slices fill_with", sequences::slice),
    Builtin("sort", "reverse case_sensitive attribute", sequences::sort),
    Builtin("string", "", |r, value, _| Ok(r.printed(value)?.into())),
    Builtin("sum", "attribute start", sequences::sum),
    Builtin("title", "", |r, value, _| strings::change_case(r, &*r.printed(value)?, "words")),
    Builtin("tojson", "ensure_ascii indent separators sort_keys", crate::json::tojson),
    Builtin("trim", "chars", strings::strip),
    Builtin("truncate", "length killwords end leeway", texts::truncate),
    Builtin("unique", "case_sensitive attribute", sequences::unique),
    Builtin("upper", "", strings::case),
    Builtin("urlencode", "", texts::urlencode),
    Builtin("wordcount", "", texts::wordcount),
];

fn default(_: &mut Renderer<'_>, value: &Value, given: &Given) -> Eval {
    let replaced = value.is_undefined() || (given.is_set("boolean") && !truth(value));
    let otherwise = || given.value("default_value").unwrap_or_else(|| Value::token(""));
    Ok(if replaced { otherwise() } else { value.clone() })
}
