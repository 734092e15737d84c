; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 8
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.19, %join.17 ]
  %.9 = mul nsw i64 %i.8, 8
  %.10 = getelementptr float, ptr %A, i64 %.9
  %.11 = load <8 x float>, ptr %.10, align 4
  %.12 = getelementptr float, ptr %B, i64 %.9
  %.13 = load <8 x float>, ptr %.12, align 4
  %.14 = fcmp olt <8 x float> %.11, %.13
  %.15 = call i1 @llvm.vector.reduce.or.v8i1(<8 x i1> %.14)
  br i1 %.15, label %then.16, label %join.17
then.16:
  %.18 = getelementptr float, ptr %C, i64 %.9
  call void @llvm.masked.store.v8f32.p0(<8 x float> %.11, ptr align 4 %.18, <8 x i1> %.14)
  br label %join.17
join.17:
  %i_next.19 = add nuw nsw i64 %i.8, 1
  %.20 = icmp slt i64 %i_next.19, %.4
  br i1 %.20, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare void @llvm.masked.store.v8f32.p0(<8 x float>, ptr, <8 x i1>)
declare i1 @llvm.vector.reduce.or.v8i1(<8 x i1>)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 8
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.19, %join.17 ]
  %.9 = mul nsw i64 %i.8, 8
  %.10 = getelementptr float, ptr %A, i64 %.9
  %.11 = load <8 x float>, ptr %.10, align 4
  %.12 = getelementptr float, ptr %B, i64 %.9
  %.13 = load <8 x float>, ptr %.12, align 4
  %.14 = fcmp olt <8 x float> %.11, %.13
  %.15 = call i1 @llvm.vector.reduce.or.v8i1(<8 x i1> %.14)
  br i1 %.15, label %then.16, label %join.17
then.16:
  %.18 = getelementptr float, ptr %C, i64 %.9
  call void @llvm.masked.store.v8f32.p0(<8 x float> %.11, ptr align 4 %.18, <8 x i1> %.14)
  br label %join.17
join.17:
  %i_next.19 = add nuw nsw i64 %i.8, 1
  %.20 = icmp slt i64 %i_next.19, %.4
  br i1 %.20, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare void @llvm.masked.store.v8f32.p0(<8 x float>, ptr, <8 x i1>)
declare i1 @llvm.vector.reduce.or.v8i1(<8 x i1>)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
