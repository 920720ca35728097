// Package bpe computes the token ids of prompts in process, from the tokenizer and the chat
// template that come with a model, without asking an engine.
//
//   - [Load]: a [Model] from the files of a model, tokenizer.json and tokenizer_config.json
//   - [Model.Tokens]: makes it a Tokenizer of package tokens
//   - [Model.Encode]: the ids of a text
//
// It reads byte-level BPE with a split by regular expressions (Llama 3, Qwen, DeepSeek,
// GPT-4o, Mistral since Nemo) and BPE over characters with byte fallback (Llama 2, Gemma).
// It refuses everything beyond that with an error, because almost correct ids are worth
// nothing: the prompt is then cut by its text.
package bpe
