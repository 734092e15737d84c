; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 4
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.44, %join.37 ]
  %.9 = urem i64 %n, 4
  %.10 = icmp slt i64 0, %.9
  br i1 %.10, label %then.11, label %join.12
then.11:
  %.13 = mul nsw i64 %i.8, 4
  %.14 = getelementptr float, ptr %A, i64 %.13
  %.15 = load float, ptr %.14, align 4
  %.16 = getelementptr float, ptr %C, i64 %.13
  store float %.15, ptr %.16, align 4
  br label %join.12
join.12:
  %.17 = icmp slt i64 1, %.9
  br i1 %.17, label %then.18, label %join.19
then.18:
  %.20 = mul nsw i64 %i.8, 4
  %.21 = getelementptr float, ptr %A, i64 %.20
  %.22 = getelementptr float, ptr %.21, i64 1
  %.23 = load float, ptr %.22, align 4
  %.24 = getelementptr float, ptr %C, i64 %.20
  %.25 = getelementptr float, ptr %.24, i64 1
  store float %.23, ptr %.25, align 4
  br label %join.19
join.19:
  %.26 = icmp slt i64 2, %.9
  br i1 %.26, label %then.27, label %join.28
then.27:
  %.29 = mul nsw i64 %i.8, 4
  %.30 = getelementptr float, ptr %A, i64 %.29
  %.31 = getelementptr float, ptr %.30, i64 2
  %.32 = load float, ptr %.31, align 4
  %.33 = getelementptr float, ptr %C, i64 %.29
  %.34 = getelementptr float, ptr %.33, i64 2
  store float %.32, ptr %.34, align 4
  br label %join.28
join.28:
  %.35 = icmp slt i64 3, %.9
  br i1 %.35, label %then.36, label %join.37
then.36:
  %.38 = mul nsw i64 %i.8, 4
  %.39 = getelementptr float, ptr %A, i64 %.38
  %.40 = getelementptr float, ptr %.39, i64 3
  %.41 = load float, ptr %.40, align 4
  %.42 = getelementptr float, ptr %C, i64 %.38
  %.43 = getelementptr float, ptr %.42, i64 3
  store float %.41, ptr %.43, align 4
  br label %join.37
join.37:
  %i_next.44 = add nuw nsw i64 %i.8, 1
  %.45 = icmp slt i64 %i_next.44, %.4
  br i1 %.45, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 4
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.44, %join.37 ]
  %.9 = urem i64 %n, 4
  %.10 = icmp slt i64 0, %.9
  br i1 %.10, label %then.11, label %join.12
then.11:
  %.13 = mul nsw i64 %i.8, 4
  %.14 = getelementptr float, ptr %A, i64 %.13
  %.15 = load float, ptr %.14, align 4
  %.16 = getelementptr float, ptr %C, i64 %.13
  store float %.15, ptr %.16, align 4
  br label %join.12
join.12:
  %.17 = icmp slt i64 1, %.9
  br i1 %.17, label %then.18, label %join.19
then.18:
  %.20 = mul nsw i64 %i.8, 4
  %.21 = getelementptr float, ptr %A, i64 %.20
  %.22 = getelementptr float, ptr %.21, i64 1
  %.23 = load float, ptr %.22, align 4
  %.24 = getelementptr float, ptr %C, i64 %.20
  %.25 = getelementptr float, ptr %.24, i64 1
  store float %.23, ptr %.25, align 4
  br label %join.19
join.19:
  %.26 = icmp slt i64 2, %.9
  br i1 %.26, label %then.27, label %join.28
then.27:
  %.29 = mul nsw i64 %i.8, 4
  %.30 = getelementptr float, ptr %A, i64 %.29
  %.31 = getelementptr float, ptr %.30, i64 2
  %.32 = load float, ptr %.31, align 4
  %.33 = getelementptr float, ptr %C, i64 %.29
  %.34 = getelementptr float, ptr %.33, i64 2
  store float %.32, ptr %.34, align 4
  br label %join.28
join.28:
  %.35 = icmp slt i64 3, %.9
  br i1 %.35, label %then.36, label %join.37
then.36:
  %.38 = mul nsw i64 %i.8, 4
  %.39 = getelementptr float, ptr %A, i64 %.38
  %.40 = getelementptr float, ptr %.39, i64 3
  %.41 = load float, ptr %.40, align 4
  %.42 = getelementptr float, ptr %C, i64 %.38
  %.43 = getelementptr float, ptr %.42, i64 3
  store float %.41, ptr %.43, align 4
  br label %join.37
join.37:
  %i_next.44 = add nuw nsw i64 %i.8, 1
  %.45 = icmp slt i64 %i_next.44, %.4
  br i1 %.45, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}


!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
