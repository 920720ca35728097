// Package bpe knows the token ids of prompts by itself: it reads the tokenizer and the chat
// template that a model comes with, and needs no engine to ask.
//
//   - [Load]: a [Model] from the files of a model, tokenizer.json and tokenizer_config.json
//   - [Model.Tokens]: makes it a Tokenizer of package tokens
//   - [Model.Encode]: the ids of a text
//
// It reads byte-level BPE with a split by regular expressions (Llama 3, Qwen, DeepSeek,
// GPT-4o, Mistral since Nemo) and BPE over characters with bytes to fall back to (Llama 2,
// Gemma). Whatever a file or a request asks for beyond that is refused with an error, since
// ids that are nearly right are worth nothing: a prompt is then cut by its text.
package bpe
