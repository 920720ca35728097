// Package prefix knows which server holds which head of a prompt.
package prefix
