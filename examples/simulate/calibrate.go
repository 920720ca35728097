package main

import "io"

func calibrate(args []string, stdout, stderr io.Writer) error { return nil }
