// Package cputime lets tests measure the CPU time of the process, which grows
// less than the clock's time while the machine is busy with other things.
package cputime
