//! The three macros every wire type is written with.

/// Declares a zero-sized type that stands for one fixed string on the wire.
///
/// A struct that carries its tag as a field reads and writes itself without a wrapper, and its
/// schema says `const`.
macro_rules! tag {
    ($name:ident = $text:literal) => {
        #[doc = concat!("The fixed string `", $text, "`.")]
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $name;

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str($text)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Fixed;
                impl serde::de::Visitor<'_> for Fixed {
                    type Value = ();
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str(concat!("the string \"", $text, "\""))
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
                        if text == $text {
                            Ok(())
                        } else {
                            Err(E::invalid_value(serde::de::Unexpected::Str(text), &self))
                        }
                    }
                }
                deserializer.deserialize_str(Fixed).map(|()| $name)
            }
        }

        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "const": $text })
            }
        }
    };
}

/// Declares a struct whose first field is a fixed discriminator, for example `"type": "text"`.
macro_rules! tagged {
    (
        $(#[$meta:meta])*
        pub struct $name:ident [$key:literal = $text:literal as $tag:ident] { $($body:tt)* }
    ) => {
        tag!($tag = $text);

        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(rename_all = "camelCase")]
        pub struct $name {
            #[doc = concat!("Always `", $text, "`.")]
            #[serde(rename = $key)]
            pub kind: $tag,
            $($body)*
        }
    };
}

/// Declares a union of [`tagged!`] structs that keeps what it does not know.
///
/// A known discriminator with a malformed body is an error; an unknown discriminator is kept whole
/// in `Unknown` and written back unchanged.
macro_rules! open_union {
    (
        $(#[$meta:meta])*
        pub enum $name:ident by $key:literal {
            $( $(#[$vmeta:meta])* $variant:ident($body:ty) = $text:literal, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        #[non_exhaustive]
        pub enum $name {
            $( $(#[$vmeta])* $variant($body), )*
            /// A kind this version does not know, kept as it came.
            Unknown(serde_json::Value),
        }

        impl $name {
            #[doc = concat!("The discriminators this version knows, the possible values of `", $key, "`.")]
            pub const KINDS: &'static [&'static str] = &[$($text),*];

            /// The discriminator as it stands on the wire, empty if an unknown kind has none.
            #[must_use]
            pub fn kind(&self) -> &str {
                match self {
                    $( Self::$variant(_) => $text, )*
                    Self::Unknown(value) => {
                        value.get($key).and_then(serde_json::Value::as_str).unwrap_or_default()
                    }
                }
            }

            /// Reads one value from JSON text.
            ///
            /// # Errors
            ///
            /// The text is not JSON, or a known kind has a malformed body.
            pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
                match $crate::decode::discriminator(text, $key)?.as_deref() {
                    $( Some($text) => serde_json::from_str(text).map(Self::$variant), )*
                    _ => serde_json::from_str(text).map(Self::Unknown),
                }
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self {
                    $( Self::$variant(body) => body.serialize(serializer), )*
                    Self::Unknown(value) => value.serialize(serializer),
                }
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let raw = Box::<serde_json::value::RawValue>::deserialize(deserializer)?;
                Self::from_json(raw.get()).map_err(serde::de::Error::custom)
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let known = vec![$( generator.subschema_for::<$body>().to_value() ),*];
                $crate::decode::open_union_schema($key, Self::KINDS, known)
            }
        }

        $(
            impl From<$body> for $name {
                fn from(body: $body) -> Self {
                    Self::$variant(body)
                }
            }
        )*
    };
}

/// Declares a set of words that may grow: an unknown word is kept and written back.
macro_rules! open_words {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $( $(#[$vmeta:meta])* $variant:ident = $text:literal, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $( $(#[$vmeta])* $variant, )*
            /// A word this version does not know.
            Unknown(String),
        }

        impl $name {
            /// The words this version knows, in the order of their declaration.
            pub const WORDS: &'static [&'static str] = &[$($text),*];

            /// The word on the wire.
            #[must_use]
            pub fn as_str(&self) -> &str {
                match self {
                    $( Self::$variant => $text, )*
                    Self::Unknown(word) => word,
                }
            }

            /// Whether this version knows the word.
            #[must_use]
            pub fn is_known(&self) -> bool {
                !matches!(self, Self::Unknown(_))
            }
        }

        impl From<&str> for $name {
            fn from(word: &str) -> Self {
                match word {
                    $( $text => Self::$variant, )*
                    other => Self::Unknown(other.to_owned()),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(deserializer)?;
                Ok(Self::from(word.as_ref()))
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "description": "One of the listed words; readers accept others, for the set may grow.",
                    "anyOf": [{ "type": "string", "enum": Self::WORDS }, { "type": "string" }]
                })
            }
        }
    };
}
