// Package cputime lets tests measure the time that the process has had, which
// grows less than that of the clock where the machine is busy with other things.
package cputime
