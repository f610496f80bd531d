// SPDX-License-Identifier: MIT OR Apache-2.0
//! A checkpoint: a GGUF file, or a folder with config.json and perhaps safetensors.

use std::path::{Path, PathBuf};

use metrale_config::gguf::GgufHeader;
use metrale_config::hf::{self, HfFiles};
use metrale_config::json::JsonLimits;
use metrale_config::{ConfigError, ModelConfig, gguf_config};

use crate::file::read_small;
use crate::paths::Folder;
use crate::{WeightStore, WeightsError, fingerprint, open_gguf, open_safetensors};

/// Bytes of a Jinja template at most.
const TEMPLATE_LIMIT: u64 = 16 << 20;

/// An opened checkpoint: its configuration, its weights, and where the rest of it lies.
#[derive(Debug)]
pub struct Checkpoint {
    /// What was opened.
    pub path: PathBuf,
    /// Its configuration.
    pub config: ModelConfig,
    /// Its weights; `None` for a folder that has a configuration only.
    pub store: Option<WeightStore>,
    /// Its other files.
    pub files: CheckpointFiles,
    /// The header of a GGUF, which carries the tokenizer (`tokenizer.*`).
    pub gguf: Option<GgufHeader>,
    config_bytes: Vec<u8>,
}

/// Files of a checkpoint folder that others read; `None` where there is none. A GGUF has none of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckpointFiles {
    /// config.json.
    pub config: Option<PathBuf>,
    /// generation_config.json.
    pub generation_config: Option<PathBuf>,
    /// tokenizer.json.
    pub tokenizer: Option<PathBuf>,
    /// tokenizer_config.json.
    pub tokenizer_config: Option<PathBuf>,
    /// tokenizer.model: a SentencePiece model.
    pub tokenizer_model: Option<PathBuf>,
    /// tekken.json: Mistral's own tokenizer file.
    pub tekken: Option<PathBuf>,
    /// chat_template.jinja.
    pub chat_template: Option<PathBuf>,
    /// preprocessor_config.json.
    pub preprocessor_config: Option<PathBuf>,
}

impl Checkpoint {
    /// Opens a checkpoint: a `.gguf` file (the first part of a split one), or a folder with config.json, or a folder
    /// with one GGUF. Reads headers and small files only; the weights stay on disk.
    ///
    /// # Errors
    /// [`WeightsError`], naming the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WeightsError> {
        let path = path.as_ref();
        let metadata = std::fs::metadata(path).map_err(|e| WeightsError::io(path, e))?;
        if !metadata.is_dir() {
            return match path
                .extension()
                .is_some_and(|e| e.eq_ignore_ascii_case("gguf"))
            {
                true => Self::open_gguf(path, path),
                false => Err(WeightsError::Unrecognised {
                    path: path.to_owned(),
                    why: "expected a .gguf file or a folder with config.json".to_owned(),
                }),
            };
        }
        let folder = Folder::open(path)?;
        if folder.find("config.json")?.is_some() {
            if let Some(store) = open_safetensors::open_folder(&folder)? {
                return Self::open_hf(&folder, Some(store));
            }
            // Repositories of GGUF files often carry the original's config.json; the header is the one that belongs.
            return match the_gguf(&folder)? {
                Some(file) => Self::open_gguf(path, &file),
                None => Self::open_hf(&folder, None),
            };
        }
        match the_gguf(&folder)? {
            Some(file) => Self::open_gguf(path, &file),
            None => Err(WeightsError::Unrecognised {
                path: path.to_owned(),
                why: "the folder has neither config.json nor a GGUF file".to_owned(),
            }),
        }
    }

    /// blake3 over the configuration (config.json, or the whole header of a GGUF), the tensor table and the first 64 KiB of each tensor: the checkpoint's part of
    /// the numerics digest. Cheap (it reads 64 KiB a tensor), and so blind to an edit deep inside a tensor.
    ///
    /// # Errors
    /// [`WeightsError`] from reading.
    pub fn fingerprint(&self) -> Result<[u8; 32], WeightsError> {
        match (&self.gguf, &self.store) {
            (Some(header), Some(store)) => {
                let bytes = store.head_of_file(0, header.data_offset())?;
                fingerprint::fingerprint(&bytes, Some(store))
            }
            (_, store) => fingerprint::fingerprint(&self.config_bytes, store.as_ref()),
        }
    }

    fn open_gguf(path: &Path, file: &Path) -> Result<Self, WeightsError> {
        let (header, store) = open_gguf::open(file)?;
        let name = file
            .file_name()
            .map(|n| n.to_string_lossy())
            .unwrap_or_default();
        let config =
            gguf_config::from_gguf(&name, &header).map_err(|source| WeightsError::Config {
                path: file.to_owned(),
                source,
            })?;
        Ok(Self {
            path: path.to_owned(),
            config,
            store: Some(store),
            files: CheckpointFiles::default(),
            config_bytes: Vec::new(),
            gguf: Some(header),
        })
    }

    fn open_hf(folder: &Folder, store: Option<WeightStore>) -> Result<Self, WeightsError> {
        let limits = JsonLimits::default();
        let files = CheckpointFiles::find(folder)?;
        let read = |path: &Option<PathBuf>, limit| {
            path.as_deref().map(|p| read_small(p, limit)).transpose()
        };
        let json = limits.bytes as u64;
        let config_bytes = read(&files.config, json)?.unwrap_or_default();
        let generation_config = read(&files.generation_config, json)?;
        let tokenizer_config = read(&files.tokenizer_config, json)?;
        let chat_template_json = read(&folder.find("chat_template.json")?, json)?;
        let chat_template_jinja = read(&files.chat_template, TEMPLATE_LIMIT)?;
        let additional_templates = additional_templates(folder)?;
        let hf_files = HfFiles {
            config: &config_bytes,
            generation_config: generation_config.as_deref(),
            tokenizer_config: tokenizer_config.as_deref(),
            chat_template_json: chat_template_json.as_deref(),
            chat_template_jinja: chat_template_jinja.as_deref(),
            additional_templates: &additional_templates,
        };
        let refuse = |source: ConfigError| WeightsError::Config {
            path: folder.path().to_owned(),
            source,
        };
        let config = hf::from_hf(&hf_files, &limits).map_err(refuse)?;
        Ok(Self {
            path: folder.path().to_owned(),
            config,
            store,
            files,
            gguf: None,
            config_bytes,
        })
    }
}

impl CheckpointFiles {
    fn find(folder: &Folder) -> Result<Self, WeightsError> {
        Ok(Self {
            config: folder.find("config.json")?,
            generation_config: folder.find("generation_config.json")?,
            tokenizer: folder.find("tokenizer.json")?,
            tokenizer_config: folder.find("tokenizer_config.json")?,
            tokenizer_model: folder.find("tokenizer.model")?,
            tekken: folder.find("tekken.json")?,
            chat_template: folder.find("chat_template.jinja")?,
            preprocessor_config: folder.find("preprocessor_config.json")?,
        })
    }
}

/// `additional_chat_templates/NAME.jinja` as (NAME, bytes).
fn additional_templates(folder: &Folder) -> Result<Vec<(String, Vec<u8>)>, WeightsError> {
    const SUBFOLDER: &str = "additional_chat_templates";
    let mut out = Vec::new();
    if folder.find(SUBFOLDER)?.is_some_and(|p| p.is_dir()) {
        for name in folder.names_in_ending(SUBFOLDER, ".jinja")? {
            if let Some(path) = folder.find(&format!("{SUBFOLDER}/{name}"))? {
                let stem = name.trim_end_matches(".jinja").to_owned();
                out.push((stem, read_small(&path, TEMPLATE_LIMIT)?));
            }
        }
    }
    Ok(out)
}

/// The one GGUF of a folder (the first part of a split one); `None` if there is none.
fn the_gguf(folder: &Folder) -> Result<Option<PathBuf>, WeightsError> {
    let names = folder.names_ending(".gguf")?;
    let mut first = names.iter().filter(|name| !is_later_part(name));
    match (first.next(), first.next()) {
        (None, _) => Ok(None),
        (Some(one), None) => folder.find(one),
        (Some(one), Some(other)) => Err(WeightsError::Unrecognised {
            path: folder.path().to_owned(),
            why: format!(
                "the folder has several GGUF files ({one}, {other}, ...); name the one to open"
            ),
        }),
    }
}

/// Whether a name is that of a part other than the first of a split GGUF: `NAME-00002-of-00003.gguf`.
fn is_later_part(name: &str) -> bool {
    let Some((rest, count)) = name.trim_end_matches(".gguf").rsplit_once("-of-") else {
        return false;
    };
    let number = rest.rsplit_once('-').map_or("", |(_, n)| n);
    let digits = |s: &str| s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
    digits(count) && digits(number) && number != "00001"
}
